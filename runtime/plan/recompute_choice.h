// What --recompute auto comes to: of the levels by layer that let a run fit its memory, those with the
// shortest step.
#pragma once

#include <string>

#include "runtime/plan/memory_plan.h"

namespace tessera {

/// `options` with levels in the place of --recompute auto; as they are where it is not auto.
///
/// Tried, by a plan each: attention, mlp or block in the first layers and nothing in the others, and
/// block there with attention or mlp in the others. Of each of these the fewest layers that fit; and
/// more of them where the plan places optimizer state or gradient sums (--resident-bytes auto,
/// --grad-offload auto) and a GPU computes again what keeps these on it sooner than they move. The best
/// has the shortest step by the estimate; on a CPU the least recomputation, by the estimate's rates.
/// Where nothing fits: block in all layers.
[[nodiscard]] RunConfig with_recompute(const RunConfig& options, const ModelConfig& config,
                                       int world_size, const MemoryLimits& limits);

/// What auto came to, as a line; empty where `options` do not say auto.
[[nodiscard]] std::string recompute_text(const RunConfig& options, const MemoryPlan& plan);

}  // namespace tessera
