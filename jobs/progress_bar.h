// One line on a terminal that says how far a long task has come; nothing where stderr is no
// terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <unistd.h>

#include "kernels/base/log.h"
#include "kernels/base/quantity.h"
#include "kernels/base/terminal.h"

namespace tessera {

enum class ProgressUnit : std::uint8_t { bytes, pieces };

class ProgressBar {
 public:
  /// `what` stands in front: "importing".
  explicit ProgressBar(std::string_view what, ProgressUnit unit = ProgressUnit::bytes)
      : what_(what), unit_(unit), start_(Clock::now()) {}
  ~ProgressBar() { clear_status(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }

  /// Draws at most ten times a second, the first time after a tenth of a second.
  void update(std::int64_t done, std::int64_t total) {
    constexpr std::chrono::milliseconds kRedraw{100};
    if (total <= 0 || Clock::now() - drawn_ < kRedraw) {
      return;
    }
    drawn_ = Clock::now();
    const std::size_t width = terminal_width(STDERR_FILENO);
    if (width <= 1) {
      return;
    }
    constexpr int kWidth = 30;
    const double share = static_cast<double>(done) / static_cast<double>(total);
    const auto filled = static_cast<std::size_t>(share * kWidth);
    const double elapsed = seconds();
    const std::string line = fmt::format(
        "{} [{:<{}}] {:3.0f}%  {} of {}  {}/s  {} left", what_, std::string(filled, '#'), kWidth,
        100 * share, amount(static_cast<double>(done)), amount(static_cast<double>(total)),
        amount(static_cast<double>(done) / elapsed),
        format_duration(elapsed * (1 - share) / (share > 0 ? share : 1)));
    // The last column stays free: a full line would make some terminals scroll.
    show_status(STDERR_FILENO, fitted(line, width - 1));
  }

 private:
  [[nodiscard]] std::string amount(double count) const {
    return unit_ == ProgressUnit::bytes ? format_bytes(static_cast<std::size_t>(count))
                                        : grouped(static_cast<Index>(count));
  }

  using Clock = std::chrono::steady_clock;
  std::string what_;
  ProgressUnit unit_;
  Clock::time_point start_;
  Clock::time_point drawn_ = start_;
};

}  // namespace tessera
