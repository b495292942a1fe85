// How long a step takes, from sizes and measured rates alone: a sum of floors, for `train --plan`.
//
// For one micro-batch of N tokens on one rank, P parameters, W ranks of which R share a node:
//
//   products   2 P N flops forward, 4 P N backward (recomputation: 2 more of what is dropped)
//   attention  2 L Hq D T N flops forward (causal), 2.5 times that backward
//   others     bytes that norms, rotary embedding, SwiGLU and the loss read and write
//   exchange   P (W - 1) / W gradients in the travelling type each way; what goes to other nodes at
//              the network's rate, behind the backward pass but for the last unit
//   update     12 bytes an element paged in and out, or 30 at the memory's rate where resident;
//              behind the forward passes that run side by side
//   gather     2 P (W - 1) / W bytes, behind them too
//
// The rates are one H100 SXM's, measured (jobs/bench/results); the network's is an assumption.
#pragma once

#include <string>

#include "runtime/options.h"

namespace tessera {

struct StepEstimate {
  double step_seconds = 0;
  double tokens_per_second = 0;  // all ranks
  double compute_seconds = 0;    // forward, loss and backward of a rank's micro-batches
  double exchange_seconds = 0;   // of gradients, hidden or not
  double exposed_exchange_seconds = 0;
  double update_seconds = 0;          // sweep and gather, hidden or not
  double exposed_update_seconds = 0;  // that no forward pass hides
  [[nodiscard]] std::string text() const;
};

/// Of a run on H100s. `paged_bytes`: optimizer state of one rank that lies on the host.
[[nodiscard]] StepEstimate estimate_step(const TrainOptions& options, const ModelConfig& config,
                                         int world_size, int ranks_per_node,
                                         std::size_t paged_bytes);

}  // namespace tessera
