#include "model/block_inputs.h"

#include <string>

#include "kernels/base/error.h"
#include "kernels/base/trace.h"

namespace tessera {

BlockInputs::BlockInputs(Index layers, DType dtype, const Shape& shape, Index sets,
                         InputPlacement placement, Arena& arena)
    : layers_(layers), on_host_(placement == InputPlacement::host && layers + 1 > kSlots) {
  TESSERA_REQUIRE(layers >= 0 && sets >= 1, "inputs of blocks, for one micro-batch or more");
  const Device device = arena.device();
  for (Index set = 0; set < sets; ++set) {
    const std::string name = set == 0 ? "activations/residual" : "activations/batched residual";
    Set& made = sets_.emplace_back();
    for (Index i = 0; i < (on_host_ ? kSlots : layers + 1); ++i) {
      made.slots.push_back({.buffer = arena.allocate(MemoryKind::device, dtype, shape, name),
                            .written = Event(device, "block input.written"),
                            .stored = Event(device, "block input.stored"),
                            .released = Event(device, "block input.released"),
                            .loaded = Event(device, "block input.loaded")});
    }
    for (Index layer = 0; is_hosted(layer); ++layer) {
      made.hosted.push_back(
          arena.allocate(MemoryKind::pinned, dtype, shape, "offloaded activations/residual"));
    }
  }
  if (on_host_ && !arena.is_dry_run()) {
    copies_.emplace_back(device, StreamPriority::normal, "activations");
  }
}

bool BlockInputs::is_hosted(Index layer) const noexcept {
  return on_host_ && layer + kSlots <= layers_;
}

void BlockInputs::use(Index set) {
  TESSERA_REQUIRE(set >= 0 && static_cast<std::size_t>(set) < sets_.size(), "a set of residuals");
  set_ = static_cast<std::size_t>(set);
}

BlockInputs::Slot& BlockInputs::slot(Index layer) {
  return sets_[set_].slots.at(static_cast<std::size_t>(on_host_ ? layer % kSlots : layer));
}

TensorView BlockInputs::view(Index layer) {
  return slot(layer).buffer.view();
}

void BlockInputs::will_write(Index layer, Stream& compute) {
  if (on_host_ && layer >= kSlots) {
    compute.wait(slot(layer).stored);
  }
}

void BlockInputs::written(Index layer, Keep keep, Stream& compute) {
  if (!is_hosted(layer) || keep == Keep::nothing) {
    return;
  }
  Slot& from = slot(layer);
  Stream& copies = copies_.front();
  from.written.record(compute);
  copies.wait(from.written);
  const TraceRange range({TraceCategory::paging, "store block input", {}}, copies);
  copy_async(from.buffer.view(), sets_[set_].hosted[static_cast<std::size_t>(layer)].view(),
             copies);
  from.stored.record(copies);
}

void BlockInputs::will_read_back(Index layer, Stream& compute) {
  if (!on_host_) {
    return;
  }
  if (is_hosted(layer)) {
    compute.wait(slot(layer).loaded);
  }
  const Index next = layer - (kSlots - 1);
  if (next < 0 || !is_hosted(next)) {
    return;
  }
  // Its place was that of layer + 1, which the work queued so far has read.
  Slot& to = slot(next);
  Stream& copies = copies_.front();
  to.released.record(compute);
  copies.wait(to.released);
  const TraceRange range({TraceCategory::paging, "load block input", {}}, copies);
  copy_async(sets_[set_].hosted[static_cast<std::size_t>(next)].view(), to.buffer.view(), copies);
  to.loaded.record(copies);
}

}  // namespace tessera
