// The GradSink of a training run: the buffers that gradients are made in (grad_slots.h) and the
// chain of stages that empties them into the optimizer shard while the backward pass continues
// (grad_reducer.h), put together for the run's options.
//
// In the last micro-step of a step the communication stream also adds the squares of the finished
// sums to the step's norm.
#pragma once

#include <memory>

#include "kernels/precision.h"
#include "model/grad_sink.h"
#include "optim/grad_reducer.h"
#include "optim/grad_slots.h"

namespace tessera {

/// `ordered`: all-to-all of shards and a sum in the order of the micro-batches, bit-identical on
/// any number of ranks. `native`: the library's reduce-scatter, in its order and rounding.
enum class ReduceMode : std::uint8_t { ordered, native };

/// Stage 2: every unit is reduced at every micro-step. Stage 1: each rank adds its own
/// micro-batches in a local f32 buffer of the whole model and sends once a step. Stage 3: as 2 for
/// gradients, and parameters are sharded (sharded_params.h).
enum class ZeroStage : std::uint8_t { one = 1, two = 2, three = 3 };

inline constexpr Index kPieceElements = Index{32} << 20;
/// Sums on the host come and go by tiles. The link's rate is reached by a quarter of this, but each
/// addition waits for a GEMM that has all multiprocessors to end, a few milliseconds.
inline constexpr Index kTileElements = Index{16} << 20;

struct GradWorkspaceOptions {
  PrecisionPolicy precision;
  ReduceMode reduce = ReduceMode::ordered;
  ZeroStage zero = ZeroStage::two;
  Index reduce_group = 1;  // micro-batches that are summed before they join the step's sum
  int node_ranks = 1;      // consecutive ranks that share a node; 1 where there are none
  /// Elements of the embedding and LM-head gradient that are packed and sent at a time, at most, if
  /// that is more than fits in a block's staging. Nothing overlaps them at a step's end: too many
  /// pieces never reach the link's rate (64 MiB in bf16 do).
  Index piece_elements = kPieceElements;
  Index tile_elements = kTileElements;            // of sums on the host that come at a time
  SlotContents on_acquire = SlotContents::leave;  // tests of C-GRADWS-001 poison
};

/// How many of a step's `micro_batches` are `rank`'s: they go to the ranks in turn, so that rank 0
/// has the most, as many as the step has micro-steps.
[[nodiscard]] constexpr Index micro_batches_of(Index rank, Index micro_batches, Index ranks) {
  return (micro_batches - rank + ranks - 1) / ranks;
}
/// True if groups of `reduce_group` micro-batches are cut by the micro-steps of `world_size` ranks.
[[nodiscard]] bool needs_group_sums(Index reduce_group, int world_size);
/// True if ranks add whole groups inside their node before anything travels between nodes: there
/// are several nodes, and neither nodes nor micro-steps cut a group. Changes no bit.
[[nodiscard]] bool reduces_hierarchically(Index reduce_group, int world_size, int node_ranks);

class GradWorkspace final : public GradSink {
 public:
  /// Keeps references to all arguments but `options` and `arena`; they must outlive it.
  GradWorkspace(const KernelTable& kernels, const ParamLayout& layout,
                const GradWorkspaceOptions& options, Communicator& comm, ShardState& shard,
                Stream& communication, Arena& arena);

  /// Begins a step of `micro_batches` micro-batches in all.
  void begin_step(Index micro_batches);
  /// The gradients that follow belong to micro-batch number * W + rank.
  void begin_micro_step(Index number);

  [[nodiscard]] TensorView acquire(UnitId unit, Stream& compute) override {
    return slots_.acquire(unit, compute);
  }
  void commit(UnitId unit, Stream& compute) override;

  /// [kFixedPointWords] i64 on the device: the squares of this rank's share of the gradient,
  /// complete in the communication stream after the last commit of a step.
  [[nodiscard]] TensorView norm_words() { return norm_words_.view(); }
  [[nodiscard]] GradSlots& slots() noexcept { return slots_; }

 private:
  [[nodiscard]] std::unique_ptr<GradReducer> make_travel(const ReduceContext& context);

  const ParamLayout& layout_;
  GradWorkspaceOptions options_;
  Index world_size_;
  Stream& communication_;
  GradSlots slots_;
  DeviceBuffer norm_words_;
  GradStaging staging_;
  std::unique_ptr<GradSums> sums_;
  std::unique_ptr<GradReducer> travel_;
  std::unique_ptr<GradReducer> local_;  // stage 1 alone
  MicroBatches micro_step_;             // of the micro-step under way
};

}  // namespace tessera
