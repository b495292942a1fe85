// Learning rate as a pure function of the step.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

namespace tessera {

enum class ScheduleKind : std::uint8_t { constant, cosine, wsd };

/// Warm-up is linear from lr / warmup at step 1 to lr at step `warmup`. Then:
///   constant  lr
///   cosine    from lr to min_ratio * lr at step `total` along half a cosine
///             (Loshchilov & Hutter 2017, arXiv:1608.03983)
///   wsd       lr, then linear down to min_ratio * lr over the last `decay` steps (Hu et al. 2024,
///             arXiv:2404.06395)
/// After step `total` the last value stays.
struct LrSchedule {
  ScheduleKind kind = ScheduleKind::cosine;
  double lr = 3e-4;
  std::int64_t warmup = 0;  // steps
  std::int64_t total = 1;   // steps
  std::int64_t decay = 0;   // steps, wsd alone
  double min_ratio = 0.1;
  double matrix_lr = 0;  // in place of lr for hidden matrices, where they are orthogonalised

  /// Of step 1, 2, ...
  [[nodiscard]] double at(std::int64_t step) const noexcept {
    if (step <= warmup) {
      return lr * static_cast<double>(step) / static_cast<double>(warmup);
    }
    const double floor = lr * min_ratio;
    switch (kind) {
      case ScheduleKind::constant:
        return lr;
      case ScheduleKind::cosine: {
        const double done = progress(step, warmup, total);
        return floor + (lr - floor) * (1 + std::cos(std::numbers::pi * done)) / 2;
      }
      case ScheduleKind::wsd:
        return lr - (lr - floor) * progress(step, total - decay, total);
    }
    return lr;
  }
  /// The same of hidden matrices.
  [[nodiscard]] double matrices_at(std::int64_t step) const noexcept {
    LrSchedule of_matrices = *this;
    of_matrices.lr = matrix_lr;
    return of_matrices.at(step);
  }

 private:
  // How much of the way from step `from` to step `to` is done at `step`: 0 to 1.
  [[nodiscard]] static double progress(std::int64_t step, std::int64_t from,
                                       std::int64_t to) noexcept {
    if (step <= from) {
      return 0;
    }
    return step >= to ? 1 : static_cast<double>(step - from) / static_cast<double>(to - from);
  }
};

}  // namespace tessera
