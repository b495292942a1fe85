// Owner of one allocation on one device. A run's long-lived buffers come from the Arena
// (arena.h), which names and counts them; tests and tools make them directly.
#pragma once

#include <string_view>

#include "kernels/device/tensor_view.h"

namespace tessera {

/// Where an allocation is stored. `pinned` is host memory the device reads and writes by itself;
/// on a CPU device all three are ordinary host memory.
enum class MemoryKind : std::uint8_t { host, pinned, device };

/// Bytes on one device, freed by the destructor. Move-only; aligned to kAlignment bytes.
///
/// The destructor frees at once, not in stream order: synchronise the streams that use a buffer
/// before it goes. Buffers are made at start-up and live for the run.
class DeviceBuffer {
 public:
  static constexpr std::size_t kAlignment = 256;

  DeviceBuffer() noexcept = default;
  /// Uninitialised memory for `shape` elements. `label` names it in error messages.
  /// Throws DeviceError when the device has no room; the message gives needed and free bytes.
  DeviceBuffer(Device device, MemoryKind kind, DType dtype, const Shape& shape,
               std::string_view label);
  /// A buffer that is planned only: right shape and size, data null. For the arena's dry run.
  [[nodiscard]] static DeviceBuffer planned(Device device, MemoryKind kind, DType dtype,
                                            const Shape& shape);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  /// `device` of the view is the CPU for host and pinned memory.
  [[nodiscard]] TensorView view() noexcept;
  [[nodiscard]] ConstTensorView view() const noexcept;
  [[nodiscard]] std::size_t size_bytes() const noexcept { return size_bytes_; }
  [[nodiscard]] bool empty() const noexcept { return size_bytes_ == 0; }

 private:
  void* data_ = nullptr;
  std::size_t size_bytes_ = 0;
  Device device_;
  MemoryKind kind_ = MemoryKind::host;
  DType dtype_ = DType::u8;
  Shape shape_{0};
};

/// Queues a copy in `stream`, between any two kinds of memory. Neither side may be reused before
/// the stream passes it. Requires: same dtype and count on both sides.
void copy_async(ConstTensorView from, TensorView to, Stream& stream);

/// Queues zeroing of every byte.
void zero_async(TensorView target, Stream& stream);

/// Queues the setting of every byte to 0xFF, which is NaN in every float type. For tests of what
/// must be overwritten.
void poison_async(TensorView target, Stream& stream);

}  // namespace tessera
