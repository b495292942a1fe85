#include <algorithm>

#include "optim/grad_reducer.h"

namespace tessera {
namespace {

class NativeReducer final : public GradReducer {
 public:
  NativeReducer(const ReduceContext& context, GradStaging& staging, GradReducer& next)
      : context_(context), staging_(staging), next_(next) {}

  void reduce(const GradPiece& piece) override {
    const Index ranks = piece.rows.shape[0];
    const Index shard = piece.rows.shape[1];
    if (context_.comm.rank() >= piece.of.count) {
      zero_async(piece.rows, context_.communication);  // the library adds every rank's numbers
    }
    // What follows counts micro-steps where it counted micro-batches.
    const MicroBatches of_steps = {.first = piece.of.first / ranks,
                                   .count = 1,
                                   .total = (piece.of.total + ranks - 1) / ranks,
                                   .reduce_group = 1};
    const TensorView staging = staging_.all(piece.rows.dtype);
    if (shard <= staging.count()) {
      const TensorView arrived = staging.slice(0, shard);
      context_.comm.reduce_scatter(piece.rows, arrived, context_.communication);
      next_.reduce({piece.unit, arrived.reshaped({1, shard}), 0, of_steps});
      return;
    }
    const Index most = staging.count() / (ranks + 1) / kShardAlignment * kShardAlignment;
    for (Index begin = 0; begin < shard; begin += most) {
      const Index columns = std::min(most, shard - begin);
      const TensorView packed = staging.slice(0, ranks * columns);
      pack_columns(context_.kernels, piece.rows, begin, packed.reshaped({ranks, columns}),
                   context_.communication);
      const TensorView arrived = staging.slice(ranks * most, ranks * most + columns);
      context_.comm.reduce_scatter(packed, arrived, context_.communication);
      next_.reduce({piece.unit, arrived.reshaped({1, columns}), begin, of_steps});
    }
  }

 private:
  ReduceContext context_;
  GradStaging& staging_;
  GradReducer& next_;
};

}  // namespace

std::unique_ptr<GradReducer> make_native_reducer(const ReduceContext& context, GradStaging& staging,
                                                 GradReducer& next) {
  return std::make_unique<NativeReducer>(context, staging, next);
}

}  // namespace tessera
