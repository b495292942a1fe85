// Which parameters' optimizer state stays on the device (--resident-bytes), for the plan, the event
// "memory" and the report.
#pragma once

#include <string>

#include "optim/shard_state.h"

namespace tessera {

/// Of one rank, which stores a part of most parameters.
struct ResidentParams {
  Index count = 0;    // parameters whose part is resident
  Index stored = 0;   // parameters of which this rank stores a part
  std::string names;  // of the resident ones: "embedding, block.0 to block.5, block.6.mlp.norm"
};

/// Units that are resident as a whole go by the unit's name, and blocks that follow one another by
/// the first and the last. Names are "all" or "none" where that says it.
[[nodiscard]] ResidentParams resident_params(const ShardState& shard);

}  // namespace tessera
