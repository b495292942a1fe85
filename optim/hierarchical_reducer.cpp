#include <algorithm>

#include "kernels/base/trace.h"
#include "optim/grad_reducer.h"

namespace tessera {
namespace {

// Of G consecutive ranks, one reduce group, and `groups` of them: member l of group g owns shard
// [g, l]. Per piece of K columns:
//
//   packed   [G, groups, K]  this rank's columns, by member
//   arrived  [G, groups, K]  from each member of the group, for this member
//   partial  [groups, K]     f32: what the group's micro-batches add up to, for each owner
//   sums     [groups, K]     f32: what each group's do, for this rank
class HierarchicalReducer final : public GradReducer {
 public:
  HierarchicalReducer(const ReduceContext& context, GradStaging& staging, DType travel,
                      GradReducer& next)
      : context_(context), staging_(staging), travel_(travel), next_(next) {}

  void reduce(const GradPiece& piece) override {
    const Index ranks = piece.rows.shape[0];
    const Index shard = piece.rows.shape[1];
    const Index G = piece.of.reduce_group;
    const Index groups = ranks / G;
    const Index group = context_.comm.rank() / G;
    const RankGroup inside = {static_cast<int>(group * G), 1, static_cast<int>(G)};
    const RankGroup across = {static_cast<int>(context_.comm.rank() % G), static_cast<int>(G),
                              static_cast<int>(groups)};
    // What follows counts groups where it counted micro-batches.
    const MicroBatches of_groups = {.first = piece.of.first / G,
                                    .count = (piece.of.count + G - 1) / G,
                                    .total = (piece.of.total + G - 1) / G,
                                    .reduce_group = 1};
    const Index most = staging_.lower(travel_).count() / ranks / kShardAlignment * kShardAlignment;
    for (Index begin = 0; begin < shard; begin += most) {
      const Index columns = std::min(most, shard - begin);
      const Index width = groups * columns;
      const TensorView packed = staging_.lower(travel_).slice(0, G * width);
      pack_by_member(piece, begin, packed.reshaped({G, groups, columns}));
      const TensorView arrived = staging_.upper(travel_).slice(0, G * width);
      exchange(piece, "exchange in node", inside, packed, arrived);
      const TensorView partial = staging_.lower(DType::f32).slice(0, width);
      const Index own = std::clamp<Index>(piece.of.total - piece.of.first - group * G, 0, G);
      add_members(piece, arrived.reshaped({G, width}), own, partial);
      const TensorView sums = staging_.upper(DType::f32).slice(0, width);
      exchange(piece, "exchange", across, partial, sums);
      next_.reduce({piece.unit, sums.reshaped({groups, columns}), begin, of_groups});
    }
  }

 private:
  void pack_by_member(const GradPiece& piece, Index begin, const TensorView& packed) {
    const Index members = packed.shape[0];
    const Index groups = packed.shape[1];
    const Index columns = packed.shape[2];
    const Index shard = piece.rows.shape[1];
    for (Index member = 0; member < members; ++member) {
      context_.kernels.cast_rows(
          {.from = piece.rows.slice(member * shard + begin, piece.rows.count()),
           .to = packed.slice(member * groups * columns, (member + 1) * groups * columns),
           .rows = groups,
           .columns = columns,
           .from_stride = members * shard,
           .to_stride = columns},
          context_.communication);
    }
  }

  void exchange(const GradPiece& piece, const char* label, const RankGroup& group,
                const TensorView& send, const TensorView& recv) {
    const TraceRange exchanging({TraceCategory::exchange, label, context_.name_of(piece.unit)},
                                context_.communication);
    context_.comm.all_to_all(group, send, recv, context_.communication);
  }

  // Rows of `own` members, the others have no micro-batch; with none the sum is not read.
  void add_members(const GradPiece& piece, const TensorView& rows, Index own,
                   const TensorView& sum) {
    if (own == 0) {
      return;
    }
    const TraceRange adding({TraceCategory::exchange, "sum in node", context_.name_of(piece.unit)},
                            context_.communication);
    context_.kernels.accumulate({.slices = rows,
                                 .sum = sum,
                                 .partial = {},
                                 .first = 0,
                                 .count = own,
                                 .total = own,
                                 .reduce_group = 1},
                                context_.communication);
  }

  ReduceContext context_;
  GradStaging& staging_;
  DType travel_;
  GradReducer& next_;
};

}  // namespace

std::unique_ptr<GradReducer> make_hierarchical_reducer(const ReduceContext& context,
                                                       GradStaging& staging, DType travel,
                                                       GradReducer& next) {
  return std::make_unique<HierarchicalReducer>(context, staging, travel, next);
}

}  // namespace tessera
