#include "kernels/device/stream.h"

#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/process_exit.h"
#include "kernels/device/device_backend.h"

namespace tessera {

Event::~Event() {
  if (handle_ != nullptr) {
    device_backend(device_.kind).release_event(device_, handle_);
  }
}

Event::Event(Event&& other) noexcept
    : device_(other.device_), name_(other.name_), handle_(std::exchange(other.handle_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  if (this != &other) {
    if (handle_ != nullptr) {
      device_backend(device_.kind).release_event(device_, handle_);
    }
    device_ = other.device_;
    name_ = other.name_;
    handle_ = std::exchange(other.handle_, nullptr);
  }
  return *this;
}

void Event::record(Stream& stream) {
  const DeviceBackend& backend = device_backend(device_.kind);
  if (handle_ == nullptr) {
    handle_ = backend.make_event(device_, name_);
  }
  backend.record_event(handle_, stream);
}

void Event::synchronize() const {
  if (handle_ != nullptr) {
    device_backend(device_.kind).synchronize_event(device_, handle_);
    park_if_exiting();
  }
}

bool Event::is_complete() const {
  const bool complete =
      handle_ == nullptr || device_backend(device_.kind).event_complete(device_, handle_);
  park_if_exiting();
  return complete;
}

double Event::seconds_since(const Event& start) const {
  TESSERA_REQUIRE(handle_ != nullptr && start.handle_ != nullptr, "both events were recorded");
  return device_backend(device_.kind).event_seconds(device_, start.handle_, handle_);
}

Stream::Stream(Device device, StreamPriority priority, std::string_view name)
    : device_(device),
      name_(name),
      handle_(device_backend(device.kind).make_stream(device, priority, name_.c_str())) {}

Stream::~Stream() {
  if (handle_ != nullptr) {
    device_backend(device_.kind).release_stream(device_, handle_);
  }
}

Stream::Stream(Stream&& other) noexcept
    : device_(other.device_),
      name_(std::move(other.name_)),
      handle_(std::exchange(other.handle_, nullptr)) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  if (this != &other) {
    if (handle_ != nullptr) {
      device_backend(device_.kind).release_stream(device_, handle_);
    }
    device_ = other.device_;
    name_ = std::move(other.name_);
    handle_ = std::exchange(other.handle_, nullptr);
  }
  return *this;
}

void Stream::wait(const Event& event) {
  if (event.handle_ != nullptr) {
    device_backend(device_.kind).wait_event(*this, event.handle_);
  }
}

void Stream::synchronize() {
  device_backend(device_.kind).synchronize_stream(device_, handle_);
  park_if_exiting();
}

CUstream_st* Stream::cuda_handle() const {
  TESSERA_REQUIRE(device_.kind == DeviceKind::cuda, "a CUDA stream");
  return static_cast<CUstream_st*>(handle_);
}

}  // namespace tessera
