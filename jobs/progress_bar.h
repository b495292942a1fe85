// One line on a terminal that says how far a long copy has come; nothing where stderr is no
// terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <unistd.h>

#include "kernels/base/quantity.h"

namespace tessera {

class ProgressBar {
 public:
  /// `what` stands in front: "importing".
  explicit ProgressBar(std::string_view what)
      : what_(what), is_shown_(::isatty(STDERR_FILENO) == 1), start_(Clock::now()) {}
  ~ProgressBar() {
    if (is_drawn_) {
      draw("\r\x1b[K");
    }
  }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }

  /// Draws at most ten times a second.
  void update(std::int64_t done_bytes, std::int64_t total_bytes) {
    constexpr std::chrono::milliseconds kRedraw{100};
    if (!is_shown_ || total_bytes <= 0 || Clock::now() - drawn_ < kRedraw) {
      return;
    }
    drawn_ = Clock::now();
    is_drawn_ = true;
    constexpr int kWidth = 30;
    const double share = static_cast<double>(done_bytes) / static_cast<double>(total_bytes);
    const auto filled = static_cast<std::size_t>(share * kWidth);
    const double elapsed = seconds();
    const double rate = static_cast<double>(done_bytes) / elapsed;
    const std::string line = fmt::format(
        "\r\x1b[K{} [{:<{}}] {:3.0f}%  {} of {}  {}/s  {} left", what_, std::string(filled, '#'),
        kWidth, 100 * share, format_bytes(static_cast<std::size_t>(done_bytes)),
        format_bytes(static_cast<std::size_t>(total_bytes)),
        format_bytes(static_cast<std::size_t>(rate)),
        format_duration(elapsed * (1 - share) / (share > 0 ? share : 1)));
    draw(line);
  }

 private:
  // A terminal that does not take it is no reason to stop.
  static void draw(const std::string& text) { (void)std::fputs(text.c_str(), stderr); }

  using Clock = std::chrono::steady_clock;
  std::string what_;
  bool is_shown_;
  bool is_drawn_ = false;
  Clock::time_point start_;
  Clock::time_point drawn_{};
};

}  // namespace tessera
