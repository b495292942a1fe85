#include "optim/grad_slots.h"

#include <algorithm>

#include "kernels/base/trace.h"
#include "optim/optimizer_shard.h"

namespace tessera {
namespace {

Index largest_padded(const ParamLayout& layout, GradPlace place, int world_size) {
  Index largest = 0;
  for (const ParamUnit& unit : layout.units()) {
    if (unit.place == place) {
      largest = std::max(largest, padded_count(unit.count, world_size));
    }
  }
  return largest;
}

}  // namespace

GradSlots::GradSlots(const ParamLayout& layout, const GradSlotOptions& options, Arena& arena)
    : layout_(layout),
      options_(options),
      slots_{block_slot(arena, "gradient slots/0"), block_slot(arena, "gradient slots/1")},
      embedding_{arena.allocate(MemoryKind::device, DType::f32,
                                {largest_padded(layout, GradPlace::vocabulary, options.world_size)},
                                "embedding and LM-head gradient"),
                 Event(arena.device(), "embedding.filled"),
                 Event(arena.device(), "embedding.drained")},
      unit_slot_(static_cast<std::size_t>(layout.unit_count()), -1),
      waits_(arena.device()) {}

GradSlots::Slot GradSlots::block_slot(Arena& arena, const char* name) const {
  return {
      arena.allocate(MemoryKind::device, options_.grad_dtype,
                     {largest_padded(layout_, GradPlace::block_slot, options_.world_size)}, name),
      Event(arena.device(), "slot.filled"), Event(arena.device(), "slot.drained")};
}

const void* GradSlots::slot_address(int slot) const {
  return slots_.at(static_cast<std::size_t>(slot)).buffer.view().data;
}

GradSlots::Slot& GradSlots::slot_of(UnitId unit) {
  const int slot = unit_slot_.at(static_cast<std::size_t>(unit));
  return slot < 0 ? embedding_ : slots_.at(static_cast<std::size_t>(slot));
}

TensorView GradSlots::storage_of(UnitId unit) {
  return slot_of(unit).buffer.view().slice(
      0, padded_count(layout_.unit(unit).count, options_.world_size));
}

TensorView GradSlots::acquire(UnitId unit, Stream& compute) {
  const ParamUnit& described = layout_.unit(unit);
  if (described.place == GradPlace::block_slot) {
    unit_slot_.at(static_cast<std::size_t>(unit)) = next_slot_;
    next_slot_ = 1 - next_slot_;
  }
  {
    const TraceRange waiting({TraceCategory::exposed, "wait for slot", described.name}, compute);
    waits_.begin(compute);
    compute.wait(slot_of(unit).drained);
    waits_.end(compute);
  }
  const TensorView storage = storage_of(unit);
  if (options_.on_acquire == SlotContents::poison) {
    poison_async(storage.slice(0, described.count), compute);
  }
  zero_async(storage.slice(described.count, storage.count()), compute);
  return storage;
}

TensorView GradSlots::commit(UnitId unit, Stream& compute, Stream& communication) {
  Slot& slot = slot_of(unit);
  slot.filled.record(compute);
  communication.wait(slot.filled);
  waits_.begin(compute);
  return storage_of(unit);
}

void GradSlots::release(UnitId unit, Stream& compute, Stream& communication) {
  slot_of(unit).drained.record(communication);
  if (compute.device().kind == DeviceKind::cpu) {
    waits_.end(compute);
  }
}

}  // namespace tessera
