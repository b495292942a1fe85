#include "optim/quantized_params.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/trace.h"
#include "optim/optimizer_shard.h"

namespace tessera {
namespace {

TensorView as_bytes(const TensorView& view) {
  return {view.data, DType::u8, Shape{view.count() * static_cast<Index>(size_in_bytes(view.dtype))},
          view.device};
}

}  // namespace

QuantizedParams::QuantizedParams(const KernelTable& kernels, const ParamLayout& model,
                                 const PackedLayout& packed, std::unique_ptr<ParamStore> inner,
                                 int world_size, Arena& arena)
    : ParamStore(arena.device()),
      kernels_(kernels),
      model_(model),
      packed_(packed),
      inner_(std::move(inner)),
      versions_(static_cast<std::size_t>(model.unit_count())) {
  const auto size = static_cast<Index>(size_in_bytes(packed.params()));
  Index elements = 0;
  for (UnitId unit = 0; unit < model.unit_count(); ++unit) {
    if (packed.is_packed(unit)) {
      spare_ = std::max(spare_, 2 * padded_count(packed.bytes().unit(unit).count, world_size));
      elements = std::max({elements, model.unit(unit).count, (spare_ + size - 1) / size});
    }
  }
  for (Slot& slot : slots_) {
    slot.params = arena.allocate(MemoryKind::device, packed.params(), {elements},
                                 "parameters, widened/blocks in use");
  }
}

TensorView QuantizedParams::spare_bytes() {
  for (Slot& slot : slots_) {
    slot.unit = -1;
  }
  return as_bytes(slots_.front().params.view()).slice(0, spare_);
}

void QuantizedParams::all_gather(UnitId unit, Stream& updates) {
  ++versions_.at(static_cast<std::size_t>(unit));
  inner_->all_gather(unit, updates);
}

// The one that has the block, or that was used longest ago.
QuantizedParams::Slot& QuantizedParams::slot_for(UnitId unit) {
  Slot* best = nullptr;
  for (Slot& slot : slots_) {
    if (slot.unit == unit && slot.version == version(unit)) {
      return slot;
    }
    if (slot.open == 0 && (best == nullptr || slot.used < best->used)) {
      best = &slot;
    }
  }
  TESSERA_REQUIRE(best != nullptr, "a place for a block that is acquired");
  return *best;
}

void QuantizedParams::widen(UnitId unit, const ConstTensorView& bytes, const TensorView& values,
                            Stream& compute) const {
  const TraceRange widening({TraceCategory::compute, "widen", model_.unit(unit).name}, compute);
  for (const PackedPart& part : packed_.parts(unit)) {
    const TensorView here = values.slice(part.first, part.first + part.count);
    if (part.is_nf4) {
      kernels_.widen_nf4({.packed = bytes_of(part, bytes), .out = here}, compute);
    } else {
      copy_async(bytes_of(part, bytes), as_bytes(here), compute);
    }
  }
}

ConstTensorView QuantizedParams::open(UnitId unit, Stream& compute) {
  ParamLease lease = inner_->acquire(unit, compute);
  const Index count = model_.unit(unit).count;
  if (!packed_.is_packed(unit)) {
    const ConstTensorView view(lease.params().data, packed_.params(), Shape{count},
                               lease.params().device);
    const auto free = std::find_if(held_.begin(), held_.end(), [](const auto& h) { return !h; });
    TESSERA_REQUIRE(free != held_.end(), "a place for a unit that is acquired");
    free->emplace(HeldLease{unit, std::move(lease)});
    return view;
  }
  stream_ = stream_ == nullptr ? &compute : stream_;
  TESSERA_REQUIRE(stream_ == &compute, "blocks of a base in 4 bits are used in one stream");
  Slot& slot = slot_for(unit);
  if (slot.unit != unit || slot.version != version(unit)) {
    slot.unit = -1;  // until it is whole
    widen(unit, lease.params(), slot.params.view(), compute);
    slot.unit = unit;
    slot.version = version(unit);
  }
  slot.used = ++clock_;
  ++slot.open;
  return std::as_const(slot.params).view().slice(0, count);
}

void QuantizedParams::close(UnitId unit, Stream& /*compute*/) noexcept {
  if (packed_.is_packed(unit)) {
    for (Slot& slot : slots_) {
      slot.open -= slot.unit == unit && slot.open > 0 ? 1 : 0;
    }
    return;
  }
  for (auto& held : held_) {
    if (held && held->unit == unit) {
      held.reset();
      return;
    }
  }
}

}  // namespace tessera
