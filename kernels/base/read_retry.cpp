#include "kernels/base/read_retry.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/log.h"
#include "kernels/base/progress.h"

namespace tessera {
namespace {

constexpr std::chrono::milliseconds kFirstPause{100};
constexpr std::chrono::milliseconds kLongestPause{2'000};

// For the watchdog a process that waits for its disk makes progress.
void sleep_alive(std::chrono::milliseconds time) {
  std::this_thread::sleep_for(time);
  progress().beats.fetch_add(1, std::memory_order_relaxed);
}

double as_seconds(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

ReadRetry::ReadRetry(std::chrono::milliseconds limit, Pause pause)
    : limit_(limit), pause_(pause ? std::move(pause) : sleep_alive), next_(kFirstPause) {}

void ReadRetry::wait(const ReadError& error) {
  const std::lock_guard lock(mutex_);
  if (limit_.count() == 0) {
    throw ReadError(error);
  }
  if (waited_ >= limit_) {
    throw ReadError(fmt::format("{} (tried for {:g} s)", error.message(), as_seconds(limit_)),
                    TESSERA_HERE);
  }
  if (waited_.count() == 0) {
    log_line(LogLevel::warning,
             fmt::format("{}; trying again for up to {:g} s", error.message(), as_seconds(limit_)));
  }
  const std::chrono::milliseconds pause = std::min(next_, limit_ - waited_);
  pause_(pause);
  waited_ += pause;
  next_ = std::min(2 * next_, kLongestPause);
}

}  // namespace tessera
