// Whether a run has diverged though its losses are finite: they stand above what guessing costs.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "kernels/device/tensor_view.h"

namespace tessera {

class LossWatch {
 public:
  static constexpr std::size_t kSteps = 10;
  /// What an honest run reaches at times, at its begin above all.
  static constexpr double kExcess = 0.1;

  /// A model that guesses among `vocab` tokens has a loss of ln(vocab) nats per target.
  explicit LossWatch(Index vocab);

  /// The loss of one step, in nats per target; what is not finite is passed over: such a step is
  /// skipped and reported by itself. Returns true at the first step at which the run is diverged.
  bool add(double loss);
  /// The mean of the last kSteps losses is more than kExcess above the larger of ln(vocab) and the
  /// first loss; false before there are so many.
  [[nodiscard]] bool is_diverged() const noexcept;
  /// Of the last kSteps losses. Requires: so many were added.
  [[nodiscard]] double mean() const noexcept;
  /// What the mean is held against: the larger of ln(vocab) and the first loss.
  [[nodiscard]] double reference() const noexcept { return reference_; }
  /// The sentence for the user; `when`: "the run has diverged". Requires: as mean.
  [[nodiscard]] std::string text(std::string_view when) const;

 private:
  double guess_;      // ln(vocab)
  double reference_;  // as above
  std::array<double, kSteps> last_{};
  std::size_t count_ = 0;  // of finite losses
  bool reported_ = false;
};

}  // namespace tessera
