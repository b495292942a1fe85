// Reads that the system refuses are tried again for a while: network file systems, locks and disks
// recover, and what cannot be read is not a reason to continue without it.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <type_traits>

#include "kernels/base/read_error.h"

namespace tessera {

/// How long all reads of one purpose are tried again in all (choosing a step, loading it).
inline constexpr std::chrono::milliseconds kReadRetry{30'000};

/// Calls what reads until it succeeds or the time is used up. Thread-safe: threads that fail
/// together wait together, one pause for all. Time counts as the pauses between attempts.
class ReadRetry {
 public:
  /// Sleeps; for tests something else.
  using Pause = std::function<void(std::chrono::milliseconds)>;
  /// 0: every read has one attempt.
  explicit ReadRetry(std::chrono::milliseconds limit = kReadRetry, Pause pause = {});

  /// The result of `attempt`, called again where it throws ReadError. Throws that error once the
  /// time is used up, and everything else at once.
  template <typename Attempt>
  std::invoke_result_t<Attempt&> operator()(Attempt&& attempt) {
    for (;;) {
      try {
        return attempt();
      } catch (const ReadError& error) {
        wait(error);
      }
    }
  }

 private:
  /// Says so the first time. Throws `error`, with what was tried, where the time is used up.
  void wait(const ReadError& error);

  std::chrono::milliseconds limit_;
  Pause pause_;
  std::mutex mutex_;  // guards what follows, and is held in a pause
  std::chrono::milliseconds waited_{0};
  std::chrono::milliseconds next_;
};

}  // namespace tessera
