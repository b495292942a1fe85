#include "runtime/step_estimate.h"

#include <algorithm>

#include <fmt/format.h>

namespace tessera {
namespace {

// Measured on H100 SXM, 2026-11-27/28: jobs/bench/results/2026-11-28-h100.md and the tables of the
// design it cites.
constexpr double kProductFlops = 740e12;            // bf16 GEMMs of these models' shapes
constexpr double kAttentionForwardFlops = 550e12;   // cuDNN, causal, T 4096, head 128
constexpr double kAttentionBackwardFlops = 300e12;  // its deterministic backward, in slices
constexpr double kMemoryBytes = 2.6e12;             // read + write, 90% of the copy rate
constexpr double kNodeBytes = 300e9;                // exchange of slices and sum, 100 to 200 MB
constexpr double kPageBytes = 33e9;                 // each way, both ways at once
constexpr double kCollectiveSeconds = 30e-6;        // launch and latency of one collective
// Share of the sum of floors that whole steps reach: Qwen3-0.6B and 1.7B on one GPU.
constexpr double kShareOfFloor = 0.92;
// An assumption, not a measurement: 400 Gb/s a rank.
constexpr double kNetworkBytes = 45e9;

constexpr double kForwardProducts = 2;  // flops a parameter and token
constexpr double kBackwardProducts = 4;
constexpr double kAttentionBackward = 2.5;  // times the forward pass
constexpr double kAdamWBytes = 30;          // read and written for one element that is resident

struct Pass {
  double forward = 0;  // seconds of one micro-batch
  double backward = 0;
};

Pass micro_batch_seconds(const TrainOptions& o, const ModelConfig& c) {
  const auto N = static_cast<double>(o.micro_batch * o.seq);
  const auto T = static_cast<double>(o.seq);
  const auto L = static_cast<double>(c.num_layers);
  const auto C = static_cast<double>(c.hidden_size);
  const auto F = static_cast<double>(c.intermediate_size);
  const auto Q = static_cast<double>(c.qkv_width());
  const auto V = static_cast<double>(c.vocab_size);
  const auto A = static_cast<double>(c.query_width());
  const double attention_weights = L * (Q + A) * C;
  const double mlp_weights = L * 3 * F * C;
  const double attention = 2 * L * A * T * N / kAttentionForwardFlops;
  // bf16: two norms, rotary embedding, SwiGLU, each read and written
  const double others = 2 * N * L * (4 * C + 2 * Q + 3 * F) / kMemoryBytes;
  const double attention_part =
      kForwardProducts * attention_weights * N / kProductFlops + attention + others / 2;
  const double mlp_part = kForwardProducts * mlp_weights * N / kProductFlops + others / 2;
  Pass pass;
  pass.forward = attention_part + mlp_part;
  pass.backward = kBackwardProducts * (attention_weights + mlp_weights) * N / kProductFlops +
                  kAttentionBackward * 2 * L * A * T * N / kAttentionBackwardFlops + 2 * others;
  // the head, whose products are three; its logits are read and written once
  pass.backward += 6 * V * C * N / kProductFlops + 4 * V * N / kMemoryBytes;
  if (o.recompute == Recompute::attention || o.recompute == Recompute::block) {
    pass.backward += attention_part;
  }
  if (o.recompute == Recompute::mlp) {
    pass.backward += mlp_part * 2 / 3;
  } else if (o.recompute == Recompute::block) {
    pass.backward += mlp_part * 2 / 3;  // all but the last product
  }
  pass.forward /= kShareOfFloor;
  pass.backward /= kShareOfFloor;
  return pass;
}

}  // namespace

StepEstimate estimate_step(const TrainOptions& o, const ModelConfig& c, int world_size,
                           int ranks_per_node, std::size_t paged_bytes) {
  const auto W = static_cast<double>(world_size);
  const auto R = static_cast<double>(std::min(ranks_per_node, world_size));
  const auto P = static_cast<double>(parameter_count(c));
  const Index micro_batches = o.global_batch / o.micro_batch;
  const auto rounds = static_cast<double>((micro_batches + world_size - 1) / world_size);
  const auto units = static_cast<double>(c.num_layers + 2);
  const auto bytes = static_cast<double>(size_in_bytes(compute_dtype(o)));
  const Pass pass = micro_batch_seconds(o, c);
  const double together = std::min(static_cast<double>(o.breadth_first), rounds);

  // What a rank sends of `total` bytes, to its node's ranks and to others, one after the other.
  const auto transfer = [&](double total) {
    return world_size == 1 ? 0
                           : total * (R - 1) / W / kNodeBytes +
                                 total * (W - R) / W / kNetworkBytes + units * kCollectiveSeconds;
  };
  StepEstimate e;
  e.compute_seconds = rounds * (pass.forward + pass.backward);
  if (together > 1) {  // their blocks are computed again
    e.compute_seconds += o.recompute == Recompute::block ? 0 : together * pass.forward;
  }
  const double exchange = transfer(P * bytes);
  // Each unit's exchange runs behind the backward pass of the next ones; the last one behind none.
  e.exchange_seconds = rounds * exchange;
  e.exposed_exchange_seconds =
      rounds * std::max(0.0, exchange - pass.backward) + std::min(exchange, exchange / units);
  const double paged = static_cast<double>(paged_bytes);
  const double resident_elements = P / W - paged / 12;
  const double gather = transfer(P * bytes);
  e.update_seconds = paged / kPageBytes + resident_elements * kAdamWBytes / kMemoryBytes + gather;
  e.exposed_update_seconds =
      std::max(e.update_seconds / units, e.update_seconds - together * pass.forward);
  e.step_seconds = e.compute_seconds + e.exposed_exchange_seconds + e.exposed_update_seconds;
  e.tokens_per_second = static_cast<double>(o.global_batch * o.seq) / e.step_seconds;
  return e;
}

std::string StepEstimate::text() const {
  const auto part = [this](double seconds) { return 100 * seconds / step_seconds; };
  return fmt::format("Estimated on H100s, from rates measured on one (runtime/step_estimate.h; "
                     "network: 400 Gb/s a "
                     "rank assumed):\n"
                     "  step {:.3f} s, {:.0f} tokens/s: compute {:.3f} s\n"
                     "  gradients' exchange {:.3f} s, exposed {:.3f} s ({:.1f}%)\n"
                     "  update and gather {:.3f} s, exposed {:.3f} s ({:.1f}%)\n",
                     step_seconds, tokens_per_second, compute_seconds, exchange_seconds,
                     exposed_exchange_seconds, part(exposed_exchange_seconds), update_seconds,
                     exposed_update_seconds, part(exposed_update_seconds));
}

}  // namespace tessera
