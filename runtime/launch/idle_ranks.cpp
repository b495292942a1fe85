#include "runtime/launch/idle_ranks.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

namespace tessera {
namespace {

// The largest divisor of `number` that is at most `most`; 0 if `most` is 0.
Index largest_divisor(Index number, Index most) {
  for (Index divisor = std::min(number, most); divisor > 0; --divisor) {
    if (number % divisor == 0) {
      return divisor;
    }
  }
  return 0;
}

// What gives every rank work in every micro-step, as little as possible away from what was asked.
std::vector<std::string> remedies(const RunConfig& o, const RankShares& shares, Index ranks) {
  std::vector<std::string> found;
  const Index whole =
      o.batch.micro_batch * ranks;  // sequences of a micro-step in which all ranks work
  const Index below = o.batch.global_batch / whole * whole;
  found.push_back(below > 0 ? fmt::format("--global-batch {} or {}", below, below + whole)
                            : fmt::format("--global-batch {}", whole));
  if (o.batch.global_batch % ranks == 0) {
    found.push_back(fmt::format(
        "--micro-batch {}", largest_divisor(o.batch.global_batch / ranks, o.batch.micro_batch)));
  }
  if (const Index fewer = largest_divisor(shares.micro_batches, ranks - 1); fewer > 0) {
    found.push_back(fmt::format("{} rank{}", fewer, fewer == 1 ? "" : "s"));
  }
  return found;
}

}  // namespace

RankShares rank_shares(Index global_batch, Index micro_batch, int ranks) {
  RankShares shares;
  shares.micro_batches = global_batch / micro_batch;
  shares.micro_steps = (shares.micro_batches + ranks - 1) / ranks;
  const Index places = shares.micro_steps * ranks;
  shares.idle_ranks = places - shares.micro_batches;
  shares.workless = shares.micro_steps == 1 ? shares.idle_ranks : 0;
  shares.idle_share = static_cast<double>(shares.idle_ranks) / static_cast<double>(places);
  return shares;
}

std::string idle_ranks_text(const RunConfig& o, int ranks) {
  const RankShares shares = rank_shares(o.batch.global_batch, o.batch.micro_batch, ranks);
  if (shares.idle_ranks == 0) {
    return {};
  }
  constexpr double kPercent = 100;
  const std::string who =
      shares.workless > 0
          ? fmt::format("{} of {} ranks have no work", shares.workless, ranks)
          : fmt::format("{} of {} ranks have none in the last of its {} micro-steps",
                        shares.idle_ranks, ranks, shares.micro_steps);
  return fmt::format(
      "a step has {} micro-batch{} (--global-batch {} / --micro-batch {}), so {}: {:.0f}% of the "
      "ranks' time is idle; {} would give all of them work",
      shares.micro_batches, shares.micro_batches == 1 ? "" : "es", o.batch.global_batch,
      o.batch.micro_batch, who, kPercent * shares.idle_share,
      fmt::join(remedies(o, shares, ranks), ", or "));
}

}  // namespace tessera
