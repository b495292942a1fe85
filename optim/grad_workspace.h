// The GradSink of a training run: two block-sized buffers shared by all layers, one f32 buffer for the
// vocabulary-sized gradients, and the queue that empties them into the optimizer shard while the
// backward pass goes on.
#pragma once

#include <array>

#include "collectives/communicator.h"
#include "kernels/kernel_table.h"
#include "model/grad_sink.h"
#include "optim/shard_state.h"

namespace tessera {

/// Memory: 2 * largest block + one vocabulary matrix in f32 + staging, instead of the whole model's
/// gradients.
///
/// Order, per unit u (compute stream | communication stream):
///   acquire(u)  wait until the slot's last reduce-scatter has read it
///   backward    overwrites the slot
///   commit(u)   record `filled` | wait for `filled`; exchange slices into staging;
///                                add them to shard.grad(u) in f32; record `drained`
class GradWorkspace final : public GradSink {
 public:
  /// Keeps references to `comm` and `shard`, which must outlive it.
  GradWorkspace(const KernelTable& kernels, const ParamLayout& layout, DType grad_dtype,
                Communicator& comm, ShardState& shard, Stream& communication);

  void begin_micro_step(Index number) override;

  [[nodiscard]] TensorView acquire(UnitId unit, Stream& compute) override;
  void commit(UnitId unit, Stream& compute) override;

  /// Makes `stream` wait until every committed unit has reached the shard.
  void wait_until_drained(Stream& stream);

 private:
  struct Slot {
    DeviceBuffer buffer;
    Event filled;   // recorded in the compute stream by commit
    Event drained;  // recorded in the communication stream when the buffer may be reused
  };

  const KernelTable* kernels_;
  Communicator& comm_;
  ShardState& shard_;
  Stream& communication_;
  std::array<Slot, 2> slots_;  // [largest padded block]
  Slot vocabulary_;            // [V, C] f32: head and embedding
  DeviceBuffer staging_;       // [largest padded block], the ranks' slices before they are added
  int next_slot_ = 0;
};

}  // namespace tessera
