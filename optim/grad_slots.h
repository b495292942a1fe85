// Where gradients are made (contract C-GRADWS-001): two block-sized slots that all layers use in
// turn, so that one is reduced while the other fills, and one f32 buffer for the vocabulary-sized
// gradients of embedding and LM head. Allocated once, and what a step leaves in them is never read.
//
// Order, per unit u (compute stream | communication stream):
//   acquire(u)  wait until u's buffer has been reduced
//   backward    overwrites it
//   commit(u)   record `filled`        | wait for `filled`
//               (reduction)            | reads it
//   release(u)                         | record `drained`
#pragma once

#include <array>
#include <vector>

#include "kernels/device/arena.h"
#include "kernels/device/wait_clock.h"
#include "model/param_layout.h"

namespace tessera {

enum class SlotContents : std::uint8_t { leave, poison };

struct GradSlotOptions {
  DType grad_dtype = DType::f32;  // of the block slots
  int world_size = 1;             // units are padded for so many ranks
  /// For tests: NaN in all of a unit's gradients at each acquire.
  SlotContents on_acquire = SlotContents::leave;
};

class GradSlots {
 public:
  /// Keeps a reference to `layout`.
  GradSlots(const ParamLayout& layout, const GradSlotOptions& options, Arena& arena);

  /// As GradSink::acquire; the padding behind the unit's gradients is zero.
  [[nodiscard]] TensorView acquire(UnitId unit, Stream& compute);
  /// The unit's gradients, padding included, for work queued in `communication` from now on: it
  /// starts once what is queued in `compute` so far is done.  [W * S]
  [[nodiscard]] TensorView commit(UnitId unit, Stream& compute, Stream& communication);
  /// The buffer is free for another unit once the work queued in `communication` so far is done.
  /// Requires: one release per commit.
  void release(UnitId unit, Stream& compute, Stream& communication);

  /// How long the compute stream has stood still for free buffers since the last call; on the CPU,
  /// where the reduction runs between commit and release, with that. Requires: it has passed the
  /// last acquire.
  [[nodiscard]] double take_exposed_seconds() { return waits_.take_seconds(); }

  /// Elements of one block slot, and of the gradient of embedding or LM head.
  [[nodiscard]] Index slot_count() const noexcept { return slots_[0].buffer.view().count(); }
  [[nodiscard]] Index embedding_count() const noexcept { return embedding_.buffer.view().count(); }
  /// Where they are, from the first step to the last.
  [[nodiscard]] const void* slot_address(int slot) const;
  [[nodiscard]] const void* embedding_address() const { return embedding_.buffer.view().data; }

 private:
  struct Slot {
    DeviceBuffer buffer;
    Event filled;   // recorded in the compute stream by commit
    Event drained;  // recorded in the communication stream by release
  };

  [[nodiscard]] Slot block_slot(Arena& arena, const char* name) const;
  [[nodiscard]] Slot& slot_of(UnitId unit);
  [[nodiscard]] TensorView storage_of(UnitId unit);

  const ParamLayout& layout_;
  GradSlotOptions options_;
  std::array<Slot, 2> slots_;   // [largest padded block] grad_dtype
  Slot embedding_;              // [largest padded vocabulary unit] f32
  std::vector<int> unit_slot_;  // of a unit from its acquire on; -1: embedding_
  int next_slot_ = 0;
  WaitClock waits_;
};

}  // namespace tessera
