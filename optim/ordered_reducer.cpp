#include <algorithm>

#include "kernels/base/trace.h"
#include "optim/grad_reducer.h"

namespace tessera {
namespace {

class OrderedReducer final : public GradReducer {
 public:
  OrderedReducer(const ReduceContext& context, GradStaging& staging, DType travel,
                 GradReducer& next)
      : context_(context), staging_(staging), travel_(travel), next_(next) {}

  void reduce(const GradPiece& piece) override {
    const Index ranks = piece.rows.shape[0];
    const Index shard = piece.rows.shape[1];
    if (piece.rows.dtype == travel_ &&
        (ranks == 1 || piece.rows.count() <= staging_.all(travel_).count())) {
      // The whole unit at once; alone there is nobody to send it to.
      const TensorView arrived =
          ranks == 1
              ? piece.rows
              : exchanged(piece, piece.rows, staging_.all(travel_).slice(0, piece.rows.count()));
      next_.reduce({piece.unit, arrived.reshaped({ranks, shard}), 0, piece.of});
      return;
    }
    // Columns of all shards at a time, packed (and rounded) into one half of the staging and
    // received in the other.
    const TensorView lower = staging_.lower(travel_);
    const TensorView upper = staging_.upper(travel_);
    const Index most = lower.count() / ranks / kShardAlignment * kShardAlignment;
    for (Index begin = 0; begin < shard; begin += most) {
      const Index columns = std::min(most, shard - begin);
      const TensorView packed = lower.slice(0, ranks * columns).reshaped({ranks, columns});
      pack_columns(context_.kernels, piece.rows, begin, packed, context_.communication);
      const TensorView arrived =
          ranks == 1 ? packed : exchanged(piece, packed, upper.slice(0, ranks * columns));
      next_.reduce({piece.unit, arrived.reshaped({ranks, columns}), begin, piece.of});
    }
  }

 private:
  TensorView exchanged(const GradPiece& piece, const TensorView& send, const TensorView& recv) {
    const TraceRange exchanging({TraceCategory::exchange, "exchange", context_.name_of(piece.unit)},
                                context_.communication);
    context_.comm.all_to_all(send, recv, context_.communication);
    return recv;
  }

  ReduceContext context_;
  GradStaging& staging_;
  DType travel_;
  GradReducer& next_;
};

}  // namespace

std::unique_ptr<GradReducer> make_ordered_reducer(const ReduceContext& context,
                                                  GradStaging& staging, DType travel,
                                                  GradReducer& next) {
  return std::make_unique<OrderedReducer>(context, staging, travel, next);
}

}  // namespace tessera
