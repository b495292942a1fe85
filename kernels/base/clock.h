// The one clock that durations are measured by.
#pragma once

#include <chrono>

namespace tessera {

/// Seconds of a clock that never goes back, since some moment that is the same in all of a process.
[[nodiscard]] inline double host_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace tessera
