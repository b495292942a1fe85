// How the CPU's kernels and collectives put work into a Stream.
#pragma once

#include <functional>
#include <utility>

#include "kernels/device/stream.h"

namespace tessera::cpu {

/// Queues `work` at the end of a deferred stream (deferred.h). Requires: stream.handle() not null.
void defer(Stream& stream, std::function<void()> work);

/// Runs `work` now, in the calling thread; in the deferred mode of tests queues a copy of it.
/// Capture by value: argument structs are views.
template <typename Work>
void submit(Stream& stream, Work&& work) {
  if (stream.handle() == nullptr) {
    std::forward<Work>(work)();
  } else {
    defer(stream, std::function<void()>(std::forward<Work>(work)));
  }
}

}  // namespace tessera::cpu
