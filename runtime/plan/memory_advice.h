// What makes a run fit that does not. Every change is tried by a plan of its own, so that what is
// proposed fits both the devices and the host memory of the nodes.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/plan/memory_plan.h"

namespace tessera {

/// A change of the run that was planned.
struct MemoryProposal {
  std::vector<std::string> changes;  // "--micro-batch 1", "no --grad-offload"; none: as it is
  int ranks = 0;
  RunConfig options = {};  // with the changes
  bool fits = false;
  std::size_t device_bytes = 0;  // that a rank then needs of its device
  std::size_t node_bytes = 0;    // that a node's ranks then need of its host memory
};

/// At most two, each tried: the smallest set of settings found, of those that trade time for
/// memory, with which the run fits on its ranks, or comes nearest to it; and, without it or else
/// with it, the first of twice, four times, ... as many ranks that fit. Requires: the plan of these
/// arguments does not fit.
[[nodiscard]] std::vector<MemoryProposal> memory_proposals(const RunConfig& options,
                                                           const ModelConfig& config,
                                                           int world_size,
                                                           const MemoryLimits& limits);

struct MemoryAdvice {
  std::string text;     // the proposals as a sentence; where nothing fits, what takes the most
  std::string command;  // that starts the first that fits (start_command.h); empty if none does
  int ranks = 0;        // of it
};
[[nodiscard]] MemoryAdvice memory_advice(const RunConfig& options, const ModelConfig& config,
                                         int world_size, const MemoryLimits& limits);

}  // namespace tessera
