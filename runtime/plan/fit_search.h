// train --plan --fit: the settings that fit the memory there is, the fastest first.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/plan/memory_plan.h"

namespace tessera {

/// A run as it was planned, with some of its options changed.
struct FittingRun {
  std::vector<std::string> changes;  // "--micro-batch 8", for start_command
  std::size_t device_bytes = 0;      // of a rank
  std::size_t node_bytes = 0;        // of a node's ranks, of host memory
  std::size_t missing_bytes = 0;     // MemoryPlan's
  StepEstimate estimate;
  [[nodiscard]] bool fits() const noexcept { return missing_bytes == 0; }
};

/// Tries micro-batches, levels of recomputation and forward passes that run side by side, each with each,
/// those aside that were given; where none fits, gradients on the host, state resident or paged, and
/// smaller workspaces too. Those that fit come first, the fastest first, without those that take as much
/// memory of a device and of a node as one before, or more; then the others, what comes
/// nearest first. What changes no bit is preferred to nothing: rates alone decide. Takes some
/// hundred plans.
[[nodiscard]] std::vector<FittingRun> find_fitting_runs(const RunConfig& options,
                                                        const ModelConfig& config, int ranks,
                                                        const MemoryLimits& limits);

/// The fastest as a table, and the command of the first; or what is nearest to fitting.
[[nodiscard]] std::string fit_text(const RunConfig& options, int ranks, const MemoryLimits& limits,
                                   const std::vector<FittingRun>& runs);
[[nodiscard]] nlohmann::json fit_json(const RunConfig& options, int ranks,
                                      const std::vector<FittingRun>& runs);

}  // namespace tessera
