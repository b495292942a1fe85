// What a backend gives to Stream, Event and DeviceBuffer: one table of functions. The CPU's is in
// cpu/device_backend.cpp, CUDA's in cuda/device_backend.cpp; a build without CUDA has
// cuda_absent.cpp, whose function throws ConfigError.
#pragma once

#include <cstddef>

#include "kernels/device/device_buffer.h"
#include "kernels/device/stream.h"

namespace tessera {

struct DeviceBackend {
  /// Memory of `bytes` > 0, aligned to DeviceBuffer::kAlignment. Throws DeviceError naming `label`,
  /// the bytes needed and the bytes free.
  void* (*allocate)(Device device, MemoryKind kind, std::size_t bytes, std::string_view label);
  void (*release)(Device device, MemoryKind kind, void* data, std::size_t bytes) noexcept;
  /// Queues a copy between any two kinds of memory.
  void (*copy)(const void* from, void* to, std::size_t bytes, Stream& stream);
  /// Queues `bytes` bytes of `value`.
  void (*fill_bytes)(void* target, unsigned char value, std::size_t bytes, Stream& stream);
  void* (*make_stream)(Device device, StreamPriority priority, const char* name);
  /// Waits for the queued work, then frees. Logs failures.
  void (*release_stream)(Device device, void* stream) noexcept;
  void (*synchronize_stream)(Device device, void* stream);
  void* (*make_event)(Device device, const char* name);
  void (*release_event)(Device device, void* event) noexcept;
  void (*record_event)(void* event, Stream& stream);
  void (*wait_event)(Stream& stream, void* event);
  void (*synchronize_event)(Device device, void* event);
  bool (*event_complete)(Device device, void* event);
  double (*event_seconds)(Device device, void* start, void* end);
};

/// Throws ConfigError for `cuda` in a build without CUDA. Lives as long as the program.
[[nodiscard]] const DeviceBackend& device_backend(DeviceKind kind);

/// What can be known of a device.
struct DeviceInfo {
  std::string name;         // "NVIDIA H100 80GB HBM3", "cpu"
  std::size_t total_bytes;  // of the device's memory
  std::size_t free_bytes;   // now
  int multiprocessors;      // 0 on the CPU
  int compute_capability;   // 90: 9.0, of an H100; 0 on the CPU
  std::string bus_id;       // of PCI, "0000:3b:00.0"; empty on the CPU, or where it is not known
};
/// Number of devices of this kind that this process can use; 1 on the CPU, 0 for `cuda` without a
/// GPU. Throws ConfigError for `cuda` in a build without CUDA.
[[nodiscard]] int device_count(DeviceKind kind);
[[nodiscard]] DeviceInfo device_info(Device device);
/// Makes `device` current in this thread. Nothing on the CPU.
void use_device(Device device);

/// The CUDA halves of the three functions above and the table; defined in cuda/ or cuda_absent.cpp.
namespace cuda {
[[nodiscard]] const DeviceBackend& backend();
[[nodiscard]] int count();
[[nodiscard]] DeviceInfo info(int ordinal);
void use(int ordinal);
}  // namespace cuda
namespace cpu {
[[nodiscard]] const DeviceBackend& backend();
[[nodiscard]] DeviceInfo info();
}  // namespace cpu

}  // namespace tessera
