// The GradSink of a training run: two block-sized slots shared by all layers, one f32 buffer for
// the vocabulary-sized gradients, and the queue that empties them into the optimizer shard while
// the backward pass goes on (contract C-GRADWS-001).
//
// Order, per unit u (compute stream | communication stream):
//   acquire(u)  wait until the slot's last exchange has read it
//   backward    overwrites the slot
//   commit(u)   record `filled` | wait for `filled`; exchange slices into staging;
//                                add them to shard.grad(u) in f32, in the order of their
//                                micro-batch numbers; record `drained`
// With groups of ranks inside nodes (exchanges_in_two_levels) slices go first to that rank of the
// own group which has the owner's place in its group; it adds them, in f32, for the owners of all
// groups, and sends each its sum: group sums travel between nodes, and the additions are the same.
//
// In the last sub-round of a step the communication stream also adds the squares of the finished
// sums to the step's norm.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "collectives/communicator.h"
#include "kernels/device/wait_clock.h"
#include "kernels/kernel_table.h"
#include "model/grad_sink.h"
#include "optim/shard_state.h"

namespace tessera {

/// `ordered`: exchange of slices and a sum in the order of the micro-batches, the same bits on any
/// number of ranks. `native`: the library's reduce-scatter, in its order and rounding.
enum class ReduceMode : std::uint8_t { ordered, native };

/// Stage 2: every unit is exchanged at every micro-step. Stage 1: each rank adds its own
/// micro-batches in a local f32 buffer of the whole model and exchanges once a step.
enum class ZeroStage : std::uint8_t { one = 1, two = 2 };

enum class SlotContents : std::uint8_t { leave, poison };

inline constexpr Index kPieceElements = Index{32} << 20;

struct GradWorkspaceOptions {
  DType grad_dtype = DType::f32;  // of the block slots, and of what travels
  ReduceMode reduce = ReduceMode::ordered;
  ZeroStage zero = ZeroStage::two;
  Index sum_group = 1;  // micro-batches that are summed before they join the step's sum
  int node_ranks = 1;   // consecutive ranks that share a node; 1 where there are none
  /// Elements of the vocabulary's gradient that are packed and exchanged at a time, at most, if
  /// that is more than fits in a block's staging. Nothing hides them at a step's end: too many
  /// pieces never reach the link's rate (64 MiB in bf16 do).
  Index piece_elements = kPieceElements;
  /// For tests of C-GRADWS-001: NaN in all of a slot at each acquire.
  SlotContents on_acquire = SlotContents::leave;
};

/// How many of a step's `micro_batches` are `rank`'s: they go to the ranks in turn, so that rank 0
/// has the most, as many as the step has sub-rounds.
[[nodiscard]] constexpr Index micro_batches_of(Index rank, Index micro_batches, Index ranks) {
  return (micro_batches - rank + ranks - 1) / ranks;
}
/// True if groups of `sum_group` micro-batches are cut by the sub-rounds of `world_size`.
[[nodiscard]] bool needs_group_sums(Index sum_group, int world_size);
/// True if ranks add whole groups inside their node before anything travels between nodes: there
/// are several nodes, and neither nodes nor sub-rounds cut a group. Changes no bit.
[[nodiscard]] bool exchanges_in_two_levels(Index sum_group, int world_size, int node_ranks);

class GradWorkspace final : public GradSink {
 public:
  /// Keeps references to all arguments but `options` and `arena`; they must outlive it.
  GradWorkspace(const KernelTable& kernels, const ParamLayout& layout,
                const GradWorkspaceOptions& options, Communicator& comm, ShardState& shard,
                Stream& communication, Arena& arena);

  /// Begins a step of `micro_batches` micro-batches in all.
  void begin_step(Index micro_batches);
  /// The gradients that follow belong to micro-batch round * W + rank.
  void begin_sub_round(Index round);
  /// Takes part in a sub-round in which this rank has no micro-batch: the same exchanges, in the
  /// same order, with nothing of its own.
  void idle_sub_round(Stream& compute);

  [[nodiscard]] TensorView acquire(UnitId unit, Stream& compute) override;
  void commit(UnitId unit, Stream& compute) override;

  /// [kFixedPointWords] i64 on the device: the squares of this rank's share of the gradient,
  /// complete in the communication stream after the last commit of a step.
  [[nodiscard]] TensorView norm_words() { return norm_words_.view(); }
  /// How long the compute stream has stood still for free slots since the last call; on the CPU,
  /// where a commit runs the exchange, with that. Requires: it has passed the last acquire.
  [[nodiscard]] double take_exposed_seconds() { return waits_.take_seconds(); }
  /// Elements of one block slot and of the vocabulary buffer.
  [[nodiscard]] Index slot_count() const noexcept { return slot_count_; }
  [[nodiscard]] Index vocabulary_count() const noexcept { return vocabulary_count_; }
  [[nodiscard]] const void* slot_address(int slot) const;

 private:
  struct Slot {
    DeviceBuffer buffer;
    Event filled;   // recorded in the compute stream by commit
    Event drained;  // recorded in the communication stream when the buffer may be reused
  };

  // A piece of the sums that lie on the host, while something is added to it.
  struct Window {
    DeviceBuffer sums;  // [window elements] f32
    Event loaded;
    Event added;
    Event stored;
  };

  void allocate_windows(Arena& arena);
  [[nodiscard]] Slot& slot_of(UnitId unit);
  [[nodiscard]] bool is_last_round() const;
  [[nodiscard]] Index ranks_in_round() const;  // ranks that have a micro-batch in this sub-round
  void exchange(UnitId unit, TensorView filled);
  void drain_local(UnitId unit, TensorView filled);
  void exchange_and_add(UnitId unit, TensorView source, DType travel, Index first, Index count,
                        Index total, Index group);
  void exchange_in_two_levels(UnitId unit, TensorView source);
  void reduce_natively(UnitId unit, TensorView source);
  void pack_columns(TensorView source, Index begin, TensorView packed);
  void add_piece(UnitId unit, Index begin, ConstTensorView slices, Index first, Index count,
                 Index total, Index group);
  void add_on_host(UnitId unit, Index begin, ConstTensorView slices, Index first, Index count,
                   Index total, Index group);

  const KernelTable& kernels_;
  const ParamLayout& layout_;
  GradWorkspaceOptions options_;
  bool two_levels_;
  Communicator& comm_;
  ShardState& shard_;
  Stream& communication_;
  Index slot_count_;
  Index vocabulary_count_;
  std::array<Slot, 2> slots_;  // [largest padded block] grad_dtype
  Slot vocabulary_;            // [largest padded vocabulary unit] f32
  DeviceBuffer staging_;       // u8: what is packed and what has arrived, before it is added
  DeviceBuffer local_;         // stage 1: f32 sums of this rank's own micro-batches, all units
  DeviceBuffer norm_words_;
  std::optional<Stream> sums_in_;  // these four: only where the sums lie on the host
  std::optional<Stream> sums_out_;
  std::vector<Window> windows_;
  DeviceBuffer columns_;  // u8: a window's columns of all ranks' slices, packed
  std::size_t next_window_ = 0;
  WaitClock waits_;
  std::vector<Index> local_begin_;  // per unit, into local_
  std::vector<int> unit_slot_;      // slot of a unit between acquire and commit
  int next_slot_ = 0;
  Index micro_batches_ = 0;
  Index round_ = 0;
};

}  // namespace tessera
