// The CPU's table: host memory, and streams that run work at once unless a test defers it.
#include "kernels/device/device_backend.h"

#include <cstring>
#include <memory>
#include <new>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/round_up.h"
#include "kernels/device/cpu/deferred_queue.h"
#include "kernels/device/cpu/submit.h"

namespace tessera::cpu {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20U;

std::size_t alignment_of(std::size_t bytes) {
  return bytes >= kHugePage ? kHugePage : DeviceBuffer::kAlignment;
}

void* allocate(Device, MemoryKind, std::size_t bytes, std::string_view label) {
  const std::size_t alignment = alignment_of(bytes);
  void* data =
      ::operator new (round_up(bytes, alignment), std::align_val_t{alignment}, std::nothrow);
  if (data == nullptr) {
    throw DeviceError("no room in host memory for " + std::string(label) + ": needed " +
                          std::to_string(bytes) + " bytes of " + std::to_string(info().free_bytes) +
                          " free",
                      TESSERA_HERE);
  }
  if (alignment == kHugePage) {
    // A hint: fewer page faults and TLB misses where the kernel has huge pages to give.
    (void)madvise(data, round_up(bytes, alignment), MADV_HUGEPAGE);
  }
  return data;
}

void release(Device, MemoryKind, void* data, std::size_t bytes) noexcept {
  ::operator delete (data, std::align_val_t{alignment_of(bytes)});
}

void copy(const void* from, void* to, std::size_t bytes, Stream& stream) {
  submit(stream, [=] { std::memmove(to, from, bytes); });
}

void fill_bytes(void* target, unsigned char value, std::size_t bytes, Stream& stream) {
  submit(stream, [=] { std::memset(target, value, bytes); });
}

void* make_stream(Device, StreamPriority, const char*) {
  return make_deferred_stream();
}
void release_stream(Device, void* stream) noexcept {
  release_deferred_stream(stream);
}
void synchronize_stream(Device, void* stream) {
  if (stream != nullptr) {
    run_until_stream_is_empty(stream);
  }
}

// An event's handle owns a share of it.
using EventHandle = std::shared_ptr<DeferredEvent>;

const EventHandle& event_of(void* event) {
  return *static_cast<EventHandle*>(event);
}

void* make_event(Device, const char* name) {
  return std::make_unique<EventHandle>(
             std::make_shared<DeferredEvent>(DeferredEvent{name, 0, 0, 0.0}))
      .release();
}
void release_event(Device, void* event) noexcept {
  const std::unique_ptr<EventHandle> last_owner(static_cast<EventHandle*>(event));
}

void record_event(void* event, Stream& stream) {
  const EventHandle& mark = event_of(event);
  ++mark->recorded;
  if (stream.handle() == nullptr) {
    mark->passed = mark->recorded;
    mark->seconds = host_seconds();
    return;
  }
  defer(stream, [mark, number = mark->recorded] {
    mark->passed = number;
    mark->seconds = host_seconds();
  });
}

void wait_event(Stream& stream, void* event) {
  if (stream.handle() != nullptr) {
    defer_wait(stream.handle(), event_of(event));
  }
}

void synchronize_event(Device, void* event) {
  run_until_passed(*event_of(event));
}

bool event_complete(Device, void* event) {
  const EventHandle& mark = event_of(event);
  return mark->passed == mark->recorded;
}

double event_seconds(Device, void* start, void* end) {
  return event_of(end)->seconds - event_of(start)->seconds;
}

}  // namespace

const DeviceBackend& backend() {
  static constexpr DeviceBackend kTable = {
      .allocate = allocate,
      .release = release,
      .copy = copy,
      .fill_bytes = fill_bytes,
      .make_stream = make_stream,
      .release_stream = release_stream,
      .synchronize_stream = synchronize_stream,
      .make_event = make_event,
      .release_event = release_event,
      .record_event = record_event,
      .wait_event = wait_event,
      .synchronize_event = synchronize_event,
      .event_complete = event_complete,
      .event_seconds = event_seconds,
  };
  return kTable;
}

DeviceInfo info() {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return {.name = "cpu",
          .total_bytes = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * page,
          .free_bytes = static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) * page,
          .multiprocessors = 0,
          .compute_capability = 0,
          .bus_id = {}};
}

}  // namespace tessera::cpu
