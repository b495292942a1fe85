#include "collectives/step_exchange.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/base/error.h"

namespace tessera {

namespace {

constexpr double kNanoseconds = 1e9;

std::int64_t nanoseconds(double seconds) {
  return std::llround(seconds * kNanoseconds);
}

}  // namespace

StepExchange::StepExchange(Communicator& comm)
    : comm_(&comm), values_(kFirstTimes + kTimes * static_cast<std::size_t>(comm.world_size())) {}

void StepExchange::clear() noexcept {
  std::fill(values_.begin(), values_.end(), 0);
}

void StepExchange::add_words(std::size_t field, Words words) noexcept {
  for (std::size_t i = 0; i < words.size(); ++i) {
    values_[field + i] += words[i];
  }
}

void StepExchange::add_grad_squares(Words words) noexcept {
  add_words(kGradSquares, words);
}

void StepExchange::add_loss(Words words) noexcept {
  add_words(kLoss, words);
}

void StepExchange::add_next_targets(Index count) noexcept {
  values_[kNextTargets] += count;
}

void StepExchange::vote_stop(StopReason reason) noexcept {
  values_[kStops + static_cast<std::size_t>(reason)] += 1;
}

void StepExchange::set_writer(Writer writer, WriterState state) noexcept {
  values_[place_of(writer, state)] += 1;
}

void StepExchange::add_counter(std::size_t index, std::int64_t amount) {
  TESSERA_REQUIRE(index < kCounters, std::to_string(index));
  values_[kFirstCounter + index] += amount;
}

void StepExchange::set_times(const RankTimes& times) noexcept {
  const std::size_t first = kFirstTimes + kTimes * static_cast<std::size_t>(comm_->rank());
  values_[first] = nanoseconds(times.computing);
  values_[first + 1] = nanoseconds(times.exposed_update);
  values_[first + 2] = nanoseconds(times.exposed_exchange);
}

void StepExchange::run() {
  comm_->sum(values_);
}

double StepExchange::grad_norm() const noexcept {
  return std::sqrt(fixed_point_value(&values_[kGradSquares]));
}

double StepExchange::loss_sum() const noexcept {
  return fixed_point_value(&values_[kLoss]);
}

bool StepExchange::finite() const noexcept {
  return non_finite_count() == 0;
}

std::int64_t StepExchange::non_finite_count() const noexcept {
  return values_[kGradSquares + kFixedPointLimbs] + values_[kLoss + kFixedPointLimbs];
}

Index StepExchange::next_targets() const noexcept {
  return values_[kNextTargets];
}

std::optional<StopReason> StepExchange::stop_reason() const noexcept {
  for (std::size_t i = 0; i < kStopReasons; ++i) {
    if (values_[kStops + i] > 0) {
      return static_cast<StopReason>(i);
    }
  }
  return std::nullopt;
}

int StepExchange::writers(Writer writer, WriterState state) const noexcept {
  return static_cast<int>(values_[place_of(writer, state)]);
}

std::int64_t StepExchange::counter(std::size_t index) const {
  TESSERA_REQUIRE(index < kCounters, std::to_string(index));
  return values_[kFirstCounter + index];
}

RankTimes StepExchange::times(int rank) const {
  TESSERA_REQUIRE(rank >= 0 && rank < ranks(), std::to_string(rank));
  const std::size_t first = kFirstTimes + kTimes * static_cast<std::size_t>(rank);
  const auto seconds = [this](std::size_t at) {
    return static_cast<double>(values_[at]) / kNanoseconds;
  };
  return {seconds(first), seconds(first + 1), seconds(first + 2)};
}

}  // namespace tessera
