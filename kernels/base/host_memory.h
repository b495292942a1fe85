// What the host may give to this process: the machine's memory, the limit of its control groups
// (versions 1 and 2), the limit of locked memory, and the processors near a device. Read from /proc
// and /sys; nothing here needs a device.
#pragma once

#include <cstddef>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

inline constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

struct HostMemory {
  std::size_t total_bytes = kNoLimit;      // MemTotal
  std::size_t available_bytes = kNoLimit;  // MemAvailable: without swapping
  std::size_t cgroup_limit_bytes = kNoLimit;
  std::size_t cgroup_used_bytes = 0;  // of the group with the least room, file cache left out
  std::size_t locked_limit_bytes = kNoLimit;  // ulimit -l, as a hint: CUDA's driver may not ask

  /// What all processes of this node (or group) together can ever have.
  [[nodiscard]] std::size_t limit_bytes() const noexcept;
  /// What they can still get now.
  [[nodiscard]] std::size_t room_bytes() const noexcept;
  /// The numbers, for a message.
  [[nodiscard]] std::string text() const;
};

/// `root` is where /proc and /sys are looked for.
[[nodiscard]] HostMemory host_memory(const std::filesystem::path& root = "/");

/// Memory of this process that is in the machine's, now and at most so far; 0 where /proc tells
/// not.
struct ResidentMemory {
  std::size_t bytes = 0;       // VmRSS
  std::size_t peak_bytes = 0;  // VmHWM
};
[[nodiscard]] ResidentMemory resident_memory(const std::filesystem::path& root = "/");
/// From now on the peak is that since now. False where the kernel does not let it.
[[nodiscard]] bool restart_peak_of_resident_memory();

/// Processors of the NUMA node that a PCI device hangs on; empty where that is not known. `bus_id`
/// as CUDA gives it: "0000:3B:00.0".
[[nodiscard]] std::vector<int> processors_near(std::string_view bus_id,
                                               const std::filesystem::path& root = "/");

/// "0-3,8" as {0, 1, 2, 3, 8}. What is malformed ends the list.
[[nodiscard]] std::vector<int> parse_processors(std::string_view text);

}  // namespace tessera
