// How evenly the ranks of a run compute, and which of them holds the others up. Ranks meet in every
// step, so that their steps take the same time: what differs is how long each computes before it
// meets the others, and how long it then waits.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "collectives/step_exchange.h"
#include "kernels/device/tensor_view.h"

namespace tessera {

/// A rank that has computed for longer than its peers for kSlowSteps steps. Its peers: the ranks
/// that have as many micro-batches.
struct SlowRank {
  int rank = 0;
  // Of the middle one of those steps, by excess, so that the three numbers agree.
  double excess = 0;          // 0.08: 8% above the median of its peers
  double seconds = 0;         // that it computed
  double median_seconds = 0;  // of its peers
};

class RankWatch {
 public:
  static constexpr std::size_t kSlowSteps = 20;
  static constexpr double kSlowExcess = 0.05;
  /// Below this the others hardly wait, whatever share it is.
  static constexpr double kLeastSeconds = 0.002;
  /// A slow rank is named again once it has been below this.
  static constexpr double kRecovered = 0.025;
  /// Ranks up to which `means` has the times of each.
  static constexpr std::size_t kListedRanks = 64;

  /// `micro_batches`: of each rank, in every step.
  explicit RankWatch(const std::vector<Index>& micro_batches);

  /// One step. Returns the ranks that are slow with this step and were not before. Requires: times
  /// of all ranks.
  std::vector<SlowRank> add(std::span<const RankTimes> step);

  /// Steps since `take_means`.
  [[nodiscard]] std::size_t steps() const noexcept { return steps_; }
  /// The fields of the event "ranks" (runtime/monitor/metrics.md), means over those steps, but for
  /// the host; begins anew. Requires: steps() > 0.
  [[nodiscard]] nlohmann::ordered_json take_means();

 private:
  struct Computed {  // in one step
    double excess = 0;
    double seconds = 0;
    double median_seconds = 0;
  };
  struct Rank {
    std::array<Computed, kSlowSteps> last{};  // a ring
    bool is_slow = false;
    RankTimes sums;
  };

  // What speaks for a rank that is slow with this step and was not before.
  std::optional<Computed> newly_slow(Rank& rank) const;

  std::map<Index, std::vector<std::size_t>> peers_;  // ranks by their number of micro-batches
  std::vector<Rank> ranks_;
  std::size_t seen_ = 0;
  std::size_t steps_ = 0;
};

/// "rank 3 on node07 has computed 8% longer than the median of the ranks with as many micro-batches
/// (1.08 s against 1 s in a typical one of its last 20 steps): ..."
[[nodiscard]] std::string to_text(const SlowRank& slow, const std::string& host);

}  // namespace tessera
