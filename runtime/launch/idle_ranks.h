// Ranks that have nothing to compute in some micro-steps, because the micro-batches of a step are
// no multiple of the ranks.
#pragma once

#include <string>

#include "runtime/run/config.h"

namespace tessera {

/// How the micro-batches of one step are distributed over the ranks.
struct RankShares {
  Index micro_batches = 0;  // of a step
  Index micro_steps = 0;    // of the rank that has most
  Index idle_ranks = 0;     // in the last micro-step
  Index workless = 0;       // of them, those that have none in the whole step
  double idle_share = 0;    // of the micro-steps of all ranks, those without work
};
[[nodiscard]] RankShares rank_shares(Index global_batch, Index micro_batch, int ranks);

/// A sentence with the share of rank time that is idle and the settings that avoid it; empty where
/// every rank always has work.
[[nodiscard]] std::string idle_ranks_text(const RunConfig& options, int ranks);

}  // namespace tessera
