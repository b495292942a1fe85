// The way of a unit's gradients from the ranks that made them to the f32 sums of the ranks that own
// them, as a chain of stages, each of which knows nothing of the others:
//
//   ZeRO stage 2   [all-to-all | hierarchical | native]       -> [device sums | host sums, by unit]
//   ZeRO stage 1   local sums -> all-to-all, once a step      ->  device sums
//
// One file a stage. grad_workspace.h chooses them; all work is queued in the communication stream.
#pragma once

#include <memory>

#include "collectives/communicator.h"
#include "kernels/device/arena.h"
#include "kernels/kernel_table.h"
#include "optim/grad_staging.h"
#include "optim/shard_state.h"

namespace tessera {

/// The micro-batches of a step that rows of gradients belong to: row w to number first + w. After a
/// stage that adds rows, what it added counts as one.
struct MicroBatches {
  Index first = 0;
  Index count = 1;         // rows that take part; the others are not read
  Index total = 1;         // of the step
  Index reduce_group = 1;  // so many are summed before they join the step's sum
  /// Nothing of the step follows.
  [[nodiscard]] bool is_last() const noexcept { return first + count >= total; }
};

/// What one stage hands to the next.
struct GradPiece {
  UnitId unit;
  /// Before gradients travel [W, S]: this rank's own, row r for rank r; a stage may overwrite it.
  /// After [R, K]: columns [begin, begin + K) of this rank's local shard, a row a micro-batch.
  TensorView rows;
  Index begin = 0;
  MicroBatches of;
};

class GradReducer {
 public:
  virtual ~GradReducer() = default;
  /// Brings the piece to the sums of its owner. Collective in stages that travel: every rank calls
  /// it for the same units in the same order, ranks without a micro-batch too.
  virtual void reduce(const GradPiece& piece) = 0;
};

/// The last stage of every chain: adds rows to the local shard's gradient sums in the order of
/// their micro-batches, and the squares of complete sums to the step's norm.
class GradSums : public GradReducer {
 public:
  /// Once a step and unit, behind its last piece.
  virtual void add_squares(UnitId unit) = 0;
};

/// What every stage works with; all outlive it.
struct ReduceContext {
  const KernelTable& kernels;
  Communicator& comm;
  ShardState& shard;
  Stream& communication;

  [[nodiscard]] std::string_view name_of(UnitId unit) const {
    return shard.layout().unit(unit).name;
  }
};

/// All-to-all of shards in `travel`: the owner receives every rank's rows, and what follows adds
/// them in order, so that the sum does not depend on the number of ranks.
[[nodiscard]] std::unique_ptr<GradReducer> make_ordered_reducer(const ReduceContext& context,
                                                                GradStaging& staging, DType travel,
                                                                GradReducer& next);
/// The same sums in two all-to-alls: inside a reduce group of consecutive ranks, whose members add
/// the group's rows for the owners in all groups, and across groups, of these f32 sums.
/// Requires: reduces_hierarchically (grad_workspace.h).
[[nodiscard]] std::unique_ptr<GradReducer> make_hierarchical_reducer(const ReduceContext& context,
                                                                     GradStaging& staging,
                                                                     DType travel,
                                                                     GradReducer& next);
/// The library's reduce-scatter, in its order and rounding.
[[nodiscard]] std::unique_ptr<GradReducer> make_native_reducer(const ReduceContext& context,
                                                               GradStaging& staging,
                                                               GradReducer& next);
/// Stage 1: adds the rank's own micro-batches in f32 and hands on their sums once a step.
[[nodiscard]] std::unique_ptr<GradReducer> make_local_sums(const ReduceContext& context,
                                                           Arena& arena, GradReducer& next);
/// Sums in device memory.  norm_words  [kFixedPointWords] i64 on the device, added to
[[nodiscard]] std::unique_ptr<GradSums> make_device_sums(const ReduceContext& context,
                                                         TensorView norm_words);
/// Sums in pinned host memory, of which a tile at a time is on the device.
///
///   norm_words  [kFixedPointWords] i64 on the device, added to
///   rows_dtype  of a piece of as many rows as there are ranks; fewer rows may be wider
[[nodiscard]] std::unique_ptr<GradSums> make_host_sums(const ReduceContext& context,
                                                       TensorView norm_words, DType rows_dtype,
                                                       Index tile_elements, Arena& arena);
/// The one or the other, by the place of a unit's sums.
[[nodiscard]] std::unique_ptr<GradSums> make_split_sums(const ShardState& shard,
                                                        std::unique_ptr<GradSums> device,
                                                        std::unique_ptr<GradSums> host);

}  // namespace tessera
