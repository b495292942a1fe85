#include "runtime/monitor/rank_watch.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/error.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

// The middle one, of an even number the lower: with two ranks the slower one is held against the
// faster.
template <typename Values, typename Less = std::less<>>
auto median_of(Values values, Less less = {}) {
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::nth_element(values.begin(), middle, values.end(), less);
  return *middle;
}

// Least, median and largest of the ranks, the rank of the largest, and each where they are few.
Json spread_of(const std::vector<double>& values) {
  const auto most = std::max_element(values.begin(), values.end());
  Json spread = {{"least", *std::min_element(values.begin(), values.end())},
                 {"median", median_of(values)},
                 {"most", *most},
                 {"most_rank", most - values.begin()}};
  if (values.size() <= RankWatch::kListedRanks) {
    spread["by_rank"] = values;
  }
  return spread;
}

}  // namespace

RankWatch::RankWatch(const std::vector<Index>& micro_batches) : ranks_(micro_batches.size()) {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    peers_[micro_batches[i]].push_back(i);
  }
}

std::vector<SlowRank> RankWatch::add(std::span<const RankTimes> step) {
  TESSERA_REQUIRE(step.size() == ranks_.size(), "times of all ranks");
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    RankTimes& sums = ranks_[i].sums;
    sums.computing += step[i].computing;
    sums.exposed_update += step[i].exposed_update;
    sums.exposed_exchange += step[i].exposed_exchange;
  }
  const std::size_t place = seen_++ % kSlowSteps;
  ++steps_;
  std::vector<SlowRank> found;
  for (const auto& [micro_batches, peers] : peers_) {
    std::vector<double> computing(peers.size());
    std::transform(peers.begin(), peers.end(), computing.begin(),
                   [step](std::size_t i) { return step[i].computing; });
    const double median = median_of(computing);
    for (const std::size_t i : peers) {
      ranks_[i].last[place] = {median > 0 ? step[i].computing / median - 1 : 0, step[i].computing,
                               median};
      if (const std::optional<Computed> middle = newly_slow(ranks_[i])) {
        found.push_back(
            {static_cast<int>(i), middle->excess, middle->seconds, middle->median_seconds});
      }
    }
  }
  return found;
}

std::optional<RankWatch::Computed> RankWatch::newly_slow(Rank& rank) const {
  if (seen_ < kSlowSteps) {
    return std::nullopt;
  }
  const Computed middle = median_of(
      rank.last, [](const Computed& a, const Computed& b) { return a.excess < b.excess; });
  if (middle.excess < kRecovered) {
    rank.is_slow = false;
  }
  if (middle.excess <= kSlowExcess || middle.seconds - middle.median_seconds < kLeastSeconds ||
      std::exchange(rank.is_slow, true)) {
    return std::nullopt;
  }
  return middle;
}

Json RankWatch::take_means() {
  TESSERA_REQUIRE(steps_ > 0, "a step");
  const auto means = [this](double RankTimes::*field) {
    std::vector<double> values;
    values.reserve(ranks_.size());
    for (const Rank& rank : ranks_) {
      values.push_back(rank.sums.*field / static_cast<double>(steps_));
    }
    return values;
  };
  Json fields = {{"steps", steps_},
                 {"computing_seconds", spread_of(means(&RankTimes::computing))},
                 {"exposed_update_seconds", spread_of(means(&RankTimes::exposed_update))},
                 {"exposed_exchange_seconds", spread_of(means(&RankTimes::exposed_exchange))}};
  for (Rank& rank : ranks_) {
    rank.sums = {};
  }
  steps_ = 0;
  return fields;
}

std::string to_text(const SlowRank& slow, const std::string& host) {
  constexpr double kPercent = 100;
  return fmt::format(
      "rank {} on {} has computed {:.0f}% longer than the median of the ranks with as many "
      "micro-batches ({:.3g} s against {:.3g} s in a typical one of its last {} steps): all others "
      "wait for it; "
      "look at what else runs on that host, and at the clock and temperature of its processor or "
      "card",
      slow.rank, host, kPercent * slow.excess, slow.seconds, slow.median_seconds,
      RankWatch::kSlowSteps);
}

}  // namespace tessera
