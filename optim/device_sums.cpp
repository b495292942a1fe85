#include "kernels/base/trace.h"
#include "optim/grad_reducer.h"

namespace tessera {
namespace {

class DeviceSums final : public GradSums {
 public:
  DeviceSums(const ReduceContext& context, const TensorView& norm_words)
      : context_(context), norm_words_(norm_words) {}

  void reduce(const GradPiece& piece) override {
    const TraceRange adding({TraceCategory::exchange, "sum", context_.name_of(piece.unit)},
                            context_.communication);
    const Index end = piece.begin + piece.rows.shape[1];
    const TensorView partial = context_.shard.grad_partial(piece.unit);
    context_.kernels.accumulate(
        {.slices = piece.rows,
         .sum = context_.shard.grad(piece.unit).slice(piece.begin, end),
         .partial = partial.data == nullptr ? partial : partial.slice(piece.begin, end),
         .first = piece.of.first,
         .count = piece.of.count,
         .total = piece.of.total,
         .reduce_group = piece.of.reduce_group},
        context_.communication);
  }

  void add_squares(UnitId unit) override {
    context_.kernels.sum_of_squares({.values = context_.shard.grad(unit), .words = norm_words_},
                                    context_.communication);
  }

 private:
  ReduceContext context_;
  TensorView norm_words_;
};

}  // namespace

std::unique_ptr<GradSums> make_device_sums(const ReduceContext& context, TensorView norm_words) {
  return std::make_unique<DeviceSums>(context, norm_words);
}

}  // namespace tessera
