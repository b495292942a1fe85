// How far a conversion is, and how fast it went.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "jobs/progress_bar.h"
#include "kernels/base/quantity.h"

namespace tessera {

// "3.44 GB in 2.1 s (1.64 GB/s)"
[[nodiscard]] inline std::string rate_text(std::int64_t bytes, double seconds) {
  return fmt::format("{} in {:.1f} s ({}/s)", format_bytes(static_cast<std::size_t>(bytes)),
                     seconds,
                     format_bytes(static_cast<std::size_t>(static_cast<double>(bytes) / seconds)));
}

// A progress bar for several threads.
class SharedProgress {
 public:
  SharedProgress(std::string_view what, std::int64_t total) : bar_(what), total_(total) {}
  void add(std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    bar_.update(done_, total_);
  }
  [[nodiscard]] double seconds() const { return bar_.seconds(); }

 private:
  std::mutex mutex_;
  ProgressBar bar_;
  std::int64_t done_ = 0;
  std::int64_t total_;
};

}  // namespace tessera
