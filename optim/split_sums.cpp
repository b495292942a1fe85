#include <utility>

#include "optim/grad_reducer.h"

namespace tessera {
namespace {

class SplitSums final : public GradSums {
 public:
  SplitSums(const ShardState& shard, std::unique_ptr<GradSums> device,
            std::unique_ptr<GradSums> host)
      : shard_(shard), device_(std::move(device)), host_(std::move(host)) {}

  void reduce(const GradPiece& piece) override { of(piece.unit).reduce(piece); }
  void add_squares(UnitId unit) override { of(unit).add_squares(unit); }

 private:
  [[nodiscard]] GradSums& of(UnitId unit) { return shard_.grad_on_host(unit) ? *host_ : *device_; }

  const ShardState& shard_;
  std::unique_ptr<GradSums> device_;
  std::unique_ptr<GradSums> host_;
};

}  // namespace

std::unique_ptr<GradSums> make_split_sums(const ShardState& shard, std::unique_ptr<GradSums> device,
                                          std::unique_ptr<GradSums> host) {
  return std::make_unique<SplitSums>(shard, std::move(device), std::move(host));
}

}  // namespace tessera
