// How long a step takes, from sizes and measured rates, for `train --plan`.
//
// Work of a device, which its streams share, so that it adds up. One micro-batch of N tokens on one
// rank, P parameters, W ranks of which R share a node, b bytes of an element that travels:
//
//   products   2 m k n flops and the bytes of three matrices, whose times add like two sides of a
//              right angle: between "one after the other" and "the longer hides the shorter"
//   attention  2 L Hq D T N flops forward (causal), 2.5 times that backward
//   again      the same of what recomputation drops, layer by layer (model/recompute.h)
//   others     bytes that norms, rotary embedding, SwiGLU, loss and embedding read and write
//   adapters   P is theirs; the base's weights have no gradients (--lora)
//   widening   of a base in 4 bits: its packed blocks read and b bytes per element written, for each
//              pass over the blocks
//   sums       b P read and 4 P / W written (from the second round on also read) a micro-batch
//   update     the optimizer's arrays read and written, gradient read, parameter written (and read
//              where masters are packed): with AdamW in f32 30 bytes per element that is resident
//   Muon       the GEMMs of a Newton-Schulz iteration for each hidden matrix, of the rank that has
//              most to do, at the products' rate, which small matrices do not reach
//
// The larger the products' share of all that, the more power the card draws and the lower its
// clock: their rate falls linearly with the share. Where all of that is less than launching the kernels
// takes, the step is not estimated (StepEstimate::is_bound_by_launches).
//
// What moves between ranks and to the host:
//
//   exchange   b P (W - 1) / W a round. On one node by copy engines, which cost the device half of
//              the time that they take (memory); by NCCL all of it (its blocks hold
//              multiprocessors). To other nodes it goes behind the backward pass; what does not
//              fit there is exposed, and so is the embedding's, the last.
//              Hierarchical (--reduce-group): b P (G - 1) / G inside the groups, then 4 P / G
//              outside.
//   gather     b P (W - 1) / W once, from other nodes b P / R a rank (a ring enters a node once);
//              behind the forward passes that run side by side
//   Muon       two all-to-alls of the matrices' directions, behind the same forward passes
//   blocks     of sharded parameters (--zero 3, --params host): b P (W - 1) / W, and from the host
//              b P / W, for each pass over the blocks, behind the pass's own work; in place of the
//              gather, but for embedding and head. Once a step where their codes of 8 bits are
//              stored on the device
//   inputs     b N C of all blocks but the last ones, to the host behind the forward pass and back
//              behind the backward pass (--offload-activations)
//   paging     the arrays (with AdamW 12 bytes per element, 10 with packed masters) in and out,
//              behind the same forward passes, at a lower rate beside them than alone
//
// Rates: jobs/bench/results; the comparison with every measured step:
// jobs/bench/results/estimate.md, tests/golden/measured_steps.tsv. Not measured, assumed:
// the network (--network-bandwidth, --network-latency) but where a run on several hosts has measured
// its own (network_check.h), nodes of more than four GPUs.
#pragma once

#include <optional>
#include <string>

#include "runtime/run/config.h"

namespace tessera {

/// Bytes a second that a rank gets from other nodes, as it was measured.
struct MeasuredNetwork {
  double exchange = 0;  // in an all-to-all
  double gather = 0;    // in an all-gather
};

/// Where the ranks of a run are.
struct RankPlaces {
  int world_size = 1;
  int per_node = 1;                             // at most world_size
  int node_ranks = 1;                           // of RunSettings
  std::optional<MeasuredNetwork> network = {};  // none: what the options assume
};

/// How gradients reach their owners.
enum class ExchangeRoute : std::uint8_t { flat, hierarchical, native };

struct StepEstimate {
  Card card = Card::h100;
  RankPlaces places;
  int nodes = 1;
  MeasuredNetwork network;  // the assumed one where none was measured
  ExchangeRoute route = ExchangeRoute::flat;
  double step_seconds = 0;
  double tokens_per_second = 0;         // all ranks
  double compute_seconds = 0;           // forward, loss and backward of a rank's micro-batches
  double recompute_seconds = 0;         // of them: what backward passes compute again
  double widen_seconds = 0;             // of them: what makes parameters of a base in 4 bits
  double exchange_seconds = 0;          // of gradients, hidden or not
  double exposed_exchange_seconds = 0;  // with what it costs the products beside it
  double update_seconds = 0;            // sweep and gather, hidden or not
  double exposed_update_seconds = 0;
  double input_seconds = 0;  // of --offload-activations, hidden or not
  double exposed_input_seconds = 0;
  double param_seconds = 0;  // of blocks that are gathered at each pass, hidden or not
  double exposed_param_seconds = 0;
  // Of --sample-every, where a token of each prompt gathers all blocks; else 0.
  double sample_seconds = 0;
  double sample_token_seconds = 0;
  /// Launching the kernels of a micro-batch takes longer than they compute: the times are too short, by
  /// how much is not known, and none is to be shown to a user without saying so.
  bool is_bound_by_launches = false;
  double network_bytes = 0;    // that one rank sends to other nodes
  double network_seconds = 0;  // that they take there, hidden or not
  /// Of the step, what nothing hides of all that is moved and updated.
  [[nodiscard]] double exposed_seconds() const noexcept {
    return exposed_exchange_seconds + exposed_update_seconds + exposed_input_seconds +
           exposed_param_seconds;
  }
  [[nodiscard]] std::string text() const;
  /// Whose rates these are, and what of it was not measured: lines.
  [[nodiscard]] std::string basis_text() const;
};

/// Memory of one device to plan for: --device-memory, or that of --card.
[[nodiscard]] std::size_t planned_device_bytes(const RunConfig& options);

/// Optimizer state and gradient sums of one rank.
struct PlannedState {
  double element_bytes = 12;  // of all arrays, the mean over parameters
  bool packs_masters = false;
  std::size_t paged_bytes = 0;       // that are kept on the host
  std::size_t host_grad_bytes = 0;   // of gradient sums on the host
  double orthogonalizing_flops = 0;  // Orthogonalizer::slowest_flops
  double orthogonalizing_bytes = 0;  // Orthogonalizer::exchanged_bytes
  bool params_in_shards = false;
  bool params_on_host = false;
  Index param_blocks = 3;  // of shards, on the device at a time
  CodeStorage fp8_weights = CodeStorage::stored;
};

/// Why --card cannot compute in the run's precision, with what to do; empty if it can.
[[nodiscard]] std::string planned_card_refusal(const RunConfig& options);

/// Whether steps were measured on this card: else its rates are assumed.
[[nodiscard]] bool rates_are_measured(Card card);

/// What one micro-batch's backward pass takes to compute again what `levels` drop, beside others' rates:
/// for comparing levels. On CPUs by the rates of --card too.
[[nodiscard]] double recompute_seconds(const RunConfig& options, const ModelConfig& config,
                                       const RecomputeLevels& levels);

[[nodiscard]] StepEstimate estimate_step(const RunConfig& options, const ModelConfig& config,
                                         const RankPlaces& places, const PlannedState& kept);

}  // namespace tessera
