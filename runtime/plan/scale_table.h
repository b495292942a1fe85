// train --plan --scale: the estimate of a step over numbers of ranks.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/plan/memory_plan.h"

namespace tessera {

struct ScaleRow {
  int ranks = 1;
  int nodes = 1;
  Index global_batch = 0;
  Index reduce_group = 1;
  bool fits = false;
  std::size_t device_bytes = 0;
  StepEstimate estimate;
  double run_seconds = 0;  // of --tokens; 0: not given
};

/// 1, 2, 4, ... 512 ranks, and `ranks`; each rank keeps the micro-batches a step that it has among
/// `ranks`, so that the global batch grows with them. Several nodes without a given --reduce-group
/// have a second row, with gradients added inside nodes first. `of_node`: ranks of a full node.
/// `host_bytes`: of a node; 0: not judged.
[[nodiscard]] std::vector<ScaleRow> scale_rows(const RunConfig& options, const ModelConfig& config,
                                               int ranks, int of_node, const MemoryLimits& limits);
[[nodiscard]] std::string scale_text(const RunConfig& options, int of_node,
                                     const std::vector<ScaleRow>& rows);
[[nodiscard]] nlohmann::json scale_json(const std::vector<ScaleRow>& rows);

}  // namespace tessera
