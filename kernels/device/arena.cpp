#include "kernels/device/arena.h"

#include "kernels/base/error.h"

namespace tessera {

DeviceBuffer Arena::allocate(MemoryKind kind, DType dtype, const Shape& shape,
                             std::string_view name) {
  TESSERA_REQUIRE(!frozen_, "'" + std::string(name) + "' is allocated after training has started");
  DeviceBuffer buffer = is_dry_run() ? DeviceBuffer::planned(device_, kind, dtype, shape)
                                     : DeviceBuffer(device_, kind, dtype, shape, name);
  entries_.push_back({std::string(name), kind, buffer.size_bytes()});
  return buffer;
}

void Arena::note(MemoryKind kind, std::size_t bytes, std::string_view name) {
  entries_.push_back({std::string(name), kind, bytes});
}

std::size_t Arena::total_bytes(MemoryKind kind) const noexcept {
  std::size_t total = 0;
  for (const ArenaEntry& entry : entries_) {
    total += entry.kind == kind ? entry.bytes : 0;
  }
  return total;
}

}  // namespace tessera
