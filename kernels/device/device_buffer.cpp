#include "kernels/device/device_buffer.h"

#include <utility>

#include "kernels/base/error.h"
#include "kernels/device/device_backend.h"

namespace tessera {

DeviceBuffer::DeviceBuffer(Device device, MemoryKind kind, DType dtype, const Shape& shape,
                           std::string_view label)
    : DeviceBuffer(planned(device, kind, dtype, shape)) {
  if (size_bytes_ > 0) {
    data_ = device_backend(device.kind).allocate(device, kind, size_bytes_, label);
  }
}

DeviceBuffer DeviceBuffer::planned(Device device, MemoryKind kind, DType dtype,
                                   const Shape& shape) {
  DeviceBuffer buffer;
  buffer.size_bytes_ = static_cast<std::size_t>(shape.count()) * size_in_bytes(dtype);
  buffer.device_ = device;
  buffer.kind_ = kind;
  buffer.dtype_ = dtype;
  buffer.shape_ = shape;
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) {
    device_backend(device_.kind).release(device_, kind_, data_, size_bytes_);
  }
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      device_(other.device_),
      kind_(other.kind_),
      dtype_(other.dtype_),
      shape_(std::exchange(other.shape_, Shape{0})) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) {
      device_backend(device_.kind).release(device_, kind_, data_, size_bytes_);
    }
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
    device_ = other.device_;
    kind_ = other.kind_;
    dtype_ = other.dtype_;
    shape_ = std::exchange(other.shape_, Shape{0});
  }
  return *this;
}

TensorView DeviceBuffer::view() noexcept {
  return {data_, dtype_, shape_, kind_ == MemoryKind::device ? device_ : Device{}};
}

ConstTensorView DeviceBuffer::view() const noexcept {
  return {data_, dtype_, shape_, kind_ == MemoryKind::device ? device_ : Device{}};
}

namespace {

constexpr unsigned char kNanByte = 0xFF;

std::size_t view_bytes(const TensorView& view) {
  return static_cast<std::size_t>(view.count()) * size_in_bytes(view.dtype);
}

}  // namespace

void copy_async(ConstTensorView from, TensorView to, Stream& stream) {
  TESSERA_REQUIRE(from.dtype == to.dtype && from.count() == to.count(),
                  "both sides of a copy have the same type and number of elements");
  if (to.count() > 0) {
    device_backend(stream.device().kind).copy(from.data, to.data, view_bytes(to), stream);
  }
}

void zero_async(TensorView target, Stream& stream) {
  if (target.count() > 0) {
    device_backend(stream.device().kind).fill_bytes(target.data, 0, view_bytes(target), stream);
  }
}

void poison_async(TensorView target, Stream& stream) {
  if (target.count() > 0) {
    device_backend(stream.device().kind)
        .fill_bytes(target.data, kNanByte, view_bytes(target), stream);
  }
}

}  // namespace tessera
