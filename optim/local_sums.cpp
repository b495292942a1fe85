#include <algorithm>
#include <vector>

#include "kernels/base/trace.h"
#include "optim/grad_reducer.h"

namespace tessera {
namespace {

class LocalSums final : public GradReducer {
 public:
  LocalSums(const ReduceContext& context, Arena& arena, GradReducer& next)
      : context_(context), next_(next) {
    Index total = 0;
    for (UnitId unit = 0; unit < context.shard.layout().unit_count(); ++unit) {
      begin_.push_back(total);
      total += context.shard.padded(unit);
    }
    sums_ = arena.allocate(MemoryKind::device, DType::f32, {total}, "gradient sums/local");
  }

  void reduce(const GradPiece& piece) override {
    const Index ranks = piece.rows.shape[0];
    const Index begin = begin_.at(static_cast<std::size_t>(piece.unit));
    const Index count = piece.rows.count();
    const TensorView sum = sums_.view().slice(begin, begin + count);
    if (context_.comm.rank() < piece.of.count) {
      const TraceRange adding({TraceCategory::exchange, "sum", context_.name_of(piece.unit)},
                              context_.communication);
      const Index step = piece.of.first / ranks;
      context_.kernels.accumulate({.slices = piece.rows.reshaped({1, count}),
                                   .sum = sum,
                                   .partial = {},
                                   .first = step,
                                   .count = 1,
                                   .total = step + 1,
                                   .reduce_group = 1},
                                  context_.communication);
    }
    if (piece.of.is_last()) {
      // What follows counts ranks that have a sum where it counted micro-batches.
      const Index summed = std::min(ranks, piece.of.total);
      next_.reduce({piece.unit,
                    sum.reshaped(piece.rows.shape),
                    0,
                    {.first = 0, .count = summed, .total = summed, .reduce_group = 1}});
    }
  }

 private:
  ReduceContext context_;
  GradReducer& next_;
  std::vector<Index> begin_;  // per unit, into sums_
  DeviceBuffer sums_;         // f32, all units
};

}  // namespace

std::unique_ptr<GradReducer> make_local_sums(const ReduceContext& context, Arena& arena,
                                             GradReducer& next) {
  return std::make_unique<LocalSums>(context, arena, next);
}

}  // namespace tessera
