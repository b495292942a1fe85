#include "runtime/monitor/loss_watch.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

namespace tessera {

LossWatch::LossWatch(Index vocab)
    : guess_(std::log(static_cast<double>(vocab))), reference_(guess_) {}

bool LossWatch::add(double loss) {
  if (!std::isfinite(loss)) {
    return false;
  }
  if (count_ == 0) {
    reference_ = std::max(guess_, loss);
  }
  last_[count_++ % kSteps] = loss;
  if (reported_ || !is_diverged()) {
    return false;
  }
  reported_ = true;
  return true;
}

bool LossWatch::is_diverged() const noexcept {
  return count_ >= kSteps && mean() > (1 + kExcess) * reference_;
}

double LossWatch::mean() const noexcept {
  return std::accumulate(last_.begin(), last_.end(), 0.0) / static_cast<double>(kSteps);
}

std::string LossWatch::text(std::string_view when) const {
  return fmt::format(
      "{}: the loss of the last {} steps is {:.4f} on average, where guessing costs "
      "{:.4f}{}; try a smaller --lr, a longer --warmup, or --clip 1, and continue "
      "from an older step, or start anew in another --out",
      when, kSteps, mean(), guess_,
      reference_ > guess_ ? fmt::format(" and the first step cost {:.4f}", reference_) : "");
}

}  // namespace tessera
