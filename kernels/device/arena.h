// Every long-lived allocation of a run, by name. The same constructors that allocate also give the
// memory plan: over a dry arena they allocate nothing and only leave their entries.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "kernels/device/device_buffer.h"

namespace tessera {

/// One allocation. The part of `name` before the first '/' is its kind in the memory plan:
/// "activations/residual", "gradient slots/0".
struct ArenaEntry {
  std::string name;
  MemoryKind kind;
  std::size_t bytes;
};

enum class ArenaMode : std::uint8_t { allocate, dry_run };

class Arena {
 public:
  Arena(Device device, ArenaMode mode) noexcept : device_(device), mode_(mode) {}

  /// Uninitialised memory. In a dry run the buffer's data is null and must not be touched. An
  /// allocation of no elements is entered and has null data.
  /// Throws DeviceError when there is no room, ContractError after `freeze`.
  [[nodiscard]] DeviceBuffer allocate(MemoryKind kind, DType dtype, const Shape& shape,
                                      std::string_view name);
  /// Enters memory that a library allocates by itself (NCCL's buffers, contexts), so that the plan
  /// shows it.
  void note(MemoryKind kind, std::size_t bytes, std::string_view name);

  /// From now on `allocate` throws: training has started.
  void freeze() noexcept { frozen_ = true; }

  [[nodiscard]] Device device() const noexcept { return device_; }
  [[nodiscard]] bool is_dry_run() const noexcept { return mode_ == ArenaMode::dry_run; }
  [[nodiscard]] std::span<const ArenaEntry> entries() const noexcept { return entries_; }
  [[nodiscard]] std::size_t total_bytes(MemoryKind kind) const noexcept;

 private:
  Device device_;
  ArenaMode mode_;
  bool frozen_ = false;
  std::vector<ArenaEntry> entries_;
};

}  // namespace tessera
