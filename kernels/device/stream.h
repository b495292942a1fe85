// Where work runs (Device), the queue it runs in (Stream), and the marks that order queues (Event).
//
// The same classes serve both backends. On `DeviceKind::cpu` a Stream runs work at once in the
// calling thread and an Event is always complete, so code written against streams is correct on a
// machine without a GPU. Tests turn on the deferred mode (kernels/device/cpu/deferred.h), in which
// work is queued and run in a random order that only events constrain. Nothing here includes a
// vendor header: the class layout does not depend on the build.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/types.h"

struct CUstream_st;

namespace tessera {

enum class DeviceKind : std::uint8_t { cpu, cuda };

/// One device of this process. `ordinal` is the CUDA device number; 0 on the CPU.
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int ordinal = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

class Stream;

/// A point in a stream's work that another stream or the host can wait for. Move-only. The
/// backend's event is made by the first `record`, so an Event that is only planned costs nothing.
class Event {
 public:
  /// `name` is a literal; the events that play the same part share it ("slot.filled").
  Event(Device device, const char* name) noexcept : device_(device), name_(name) {}
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// Marks the end of the work queued in `stream` so far. A later call moves the mark.
  void record(Stream& stream);
  /// Blocks the host until the marked work is done. Returns at once if never recorded.
  void synchronize() const;
  [[nodiscard]] bool is_complete() const;
  /// Seconds from `start`'s mark to this one. Requires: both recorded and complete, on CUDA; on the
  /// CPU the host time at which the marks were passed.
  [[nodiscard]] double seconds_since(const Event& start) const;
  [[nodiscard]] const char* name() const noexcept { return name_; }

 private:
  friend class Stream;
  Device device_;
  const char* name_;
  void* handle_ = nullptr;  // the backend's; null until recorded, and when moved from
};

enum class StreamPriority : std::uint8_t { normal, high };

/// An in-order queue of device work. Move-only; owns the backend's stream.
class Stream {
 public:
  /// `name` shows in profilers and in error messages.
  /// Throws DeviceError, or ConfigError where this build has no CUDA and `device` asks for it.
  Stream(Device device, StreamPriority priority, std::string_view name);
  /// Waits for the queued work. Never throws: a failure is logged.
  ~Stream();
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  [[nodiscard]] Device device() const noexcept { return device_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// Makes work queued here from now on start after the work that `event` marks.
  void wait(const Event& event);
  /// Blocks the host until all queued work is done. Throws DeviceError if some of it failed.
  void synchronize();
  /// The backend's own handle: for kernels/device, kernels/cpu, kernels/cuda and collectives only.
  /// On the CPU null where work runs at once.
  [[nodiscard]] void* handle() const noexcept { return handle_; }
  /// For kernels/cuda and the NCCL backend only. Requires: device().kind == DeviceKind::cuda.
  [[nodiscard]] CUstream_st* cuda_handle() const;

 private:
  Device device_;
  std::string name_;
  void* handle_ = nullptr;
};

}  // namespace tessera
