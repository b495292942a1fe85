// The queues behind the deferred mode (deferred.h), for kernels/device/cpu alone.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/device/cpu/deferred.h"

namespace tessera::cpu {

/// An event of the CPU: how often it was recorded, and the last record that was passed. At once,
/// both are equal. Queued marks and waits share it with its owner, who may let it go before they
/// have run, as on a GPU.
struct DeferredEvent {
  const char* name;
  std::uint64_t recorded;
  std::uint64_t passed;
  double seconds;  // host time at which the last mark was passed
};

/// A queue while a DeferredMode lives, else null.
[[nodiscard]] void* make_deferred_stream();
/// Runs what is left in it, then frees it. Nothing for null.
void release_deferred_stream(void* stream) noexcept;
/// Holds the stream back until `event`'s mark of this moment is passed.
void defer_wait(void* stream, std::shared_ptr<DeferredEvent> event);
void run_until_stream_is_empty(void* stream);
void run_until_passed(const DeferredEvent& event);

}  // namespace tessera::cpu
