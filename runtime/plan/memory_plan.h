// The memory of a run as a table, out of the same constructors that allocate: a dry run of them is
// `train --plan`, and what a run allocated is its own plan.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device/arena.h"
#include "runtime/plan/resident_params.h"
#include "runtime/plan/step_estimate.h"
#include "runtime/run/config.h"

namespace tessera {

/// One line of the table: allocations of one kind (the name's part before '/') and place.
struct PlanLine {
  std::string name;
  MemoryKind kind;
  std::size_t bytes;
};

/// "device", "pinned host", "host".
[[nodiscard]] const char* memory_kind_name(MemoryKind kind) noexcept;

/// Lines in the order in which the kinds first appear, device before pinned before host.
[[nodiscard]] std::vector<PlanLine> plan_lines(std::span<const ArenaEntry> entries);

struct MemoryLimits {
  std::size_t device_bytes = 0;  // of one device; 0: unknown
  std::size_t host_bytes = 0;    // of one node; 0: unknown
  int ranks_per_node = 1;
  int node_ranks = 1;  // of them, those that follow one another on every node: RunSettings
  std::size_t host_room_bytes = 0;  // of it, what is free now; 0: unknown
};

/// How parameters are stored: sharded at stage 3 and on the host; and their codes of 8 bits, where
/// GEMMs take those.
struct ParamChoice {
  ZeroStage zero;
  ParamPlacement placement;
  CodeStorage codes;
};

struct MemoryAdvice;  // memory_advice.h

/// "The run: 152,588 steps of 65,536 tokens, 10,000,007,168 tokens in all, in 3.2 hours, without
/// evaluations and saves", and whether the rates were measured. Requires: options.steps is known.
[[nodiscard]] std::string run_length_text(const RunConfig& options, const StepEstimate& estimate);

/// What one rank of `world_size` needs, without a GPU and without data. `options` decide as for a
/// run.
class MemoryPlan {
 public:
  /// Throws ConfigError for options that make no run, and for a model without a vocabulary.
  /// --recompute auto becomes the levels that with_recompute (recompute_choice.h) finds.
  MemoryPlan(const RunConfig& given, const ModelConfig& config, int world_size,
             const MemoryLimits& limits);

  [[nodiscard]] const std::vector<PlanLine>& lines() const noexcept { return lines_; }
  [[nodiscard]] std::size_t total(MemoryKind kind) const noexcept;
  /// On a CPU all memory of a rank is the node's.
  [[nodiscard]] std::size_t device_bytes() const noexcept;  // of one device
  [[nodiscard]] std::size_t node_bytes() const noexcept;    // of host memory, all ranks of a node
  [[nodiscard]] std::size_t device_limit_bytes() const noexcept { return limits_.device_bytes; }
  [[nodiscard]] bool fits() const noexcept { return missing_bytes() == 0; }
  /// By how much a device and a node are exceeded, added up.
  [[nodiscard]] std::size_t missing_bytes() const noexcept;
  /// One sentence with what is short, and what to do about it; empty if it fits.
  [[nodiscard]] std::string refusal() const;
  /// The table, the totals, what sharding, the shared workspace, the fused loss and paging save,
  /// and what would help if it does not fit.
  [[nodiscard]] std::string text() const;
  /// What is short, and what to do; the command of what fits, this run or another. Takes seconds where
  /// much is tried: the next two take it.
  [[nodiscard]] MemoryAdvice shortage() const;
  [[nodiscard]] std::string text(const MemoryAdvice& lacks) const;
  /// The command that starts what fits, in lines of its own; empty if nothing does.
  [[nodiscard]] std::string command_text(const MemoryAdvice& lacks) const;
  /// The totals: "78.40 GB of 80.00 GB on a device, 86.35 GB on a node with 8 ranks".
  [[nodiscard]] std::string totals_text() const;
  /// Of optimizer state, in pinned host memory.
  [[nodiscard]] std::size_t paged_state_bytes() const noexcept;
  [[nodiscard]] std::string json() const;
  /// Of a checkpoint on disk, about: f32 numbers, however the run stores them.
  [[nodiscard]] std::size_t checkpoint_bytes() const noexcept { return checkpoint_bytes_; }
  /// Of OUT/base-nf4 (runtime/run/base_cache.h); 0: the run makes none.
  [[nodiscard]] std::uint64_t base_cache_bytes() const;
  /// What checkpoints and the blocks of a base in nf4 take on disk: a line.
  [[nodiscard]] std::string disk_text() const;
  /// The same, and how long the run takes: lines.
  [[nodiscard]] std::string run_text() const;
  /// "whole", "shards", "shards on the host".
  [[nodiscard]] std::string_view params_stored() const noexcept;
  /// How parameters are stored where that is not whole on every rank, and their codes of 8 bits:
  /// lines, else empty.
  [[nodiscard]] std::string params_text() const;
  /// Why samples would take too long where each of their tokens gathers all parameters (by the
  /// estimate, on CUDA), and what to do; empty if they do not.
  [[nodiscard]] std::string sample_refusal() const;
  /// Of a CUDA run's step; what it sends to other nodes is that of any run.
  [[nodiscard]] StepEstimate estimate() const;
  /// From now on the estimate has this network. Requires: rates above 0.
  void set_network(const MeasuredNetwork& network) { network_ = network; }
  /// What a step needs of the network that was measured; empty: none was.
  [[nodiscard]] std::string network_text() const;
  /// What was left to the plan (--zero, --params, --param-blocks, --fp8-weights, --resident-bytes, --grad-offload: auto) as it came
  /// out.
  [[nodiscard]] const RunSettings& settings() const noexcept { return settings_; }

 private:
  [[nodiscard]] Index trained_count() const;  // elements
  [[nodiscard]] std::string trained_text() const;
  [[nodiscard]] std::string base_text() const;
  struct Saving {
    std::string name;
    std::size_t with;
    std::size_t without;
  };
  void lay_out(const ParamChoice& choice);
  void fit_to_device();
  std::size_t add_param_blocks(const StateLayout& arrays, std::size_t room, bool fits_state);
  [[nodiscard]] StepEstimate estimate_of(PlannedState kept) const;
  void set_state(TrainingRun& run);
  [[nodiscard]] bool has_nf4_base() const noexcept;
  [[nodiscard]] double sample_seconds() const;
  [[nodiscard]] std::vector<Saving> savings() const;
  [[nodiscard]] std::string state_text() const;
  /// On a CPU all memory is the host's.
  [[nodiscard]] const char* place_of(const PlanLine& line) const noexcept;

  RunConfig options_;
  ModelConfig config_;
  int world_size_;
  MemoryLimits limits_;
  RunSettings settings_;
  std::vector<PlanLine> lines_;
  OptimizerShard shard_{};           // rank 0's, of all units with their padding
  std::size_t state_bytes_ = 0;      // of optimizer state, of the rank that has most
  std::size_t all_state_bytes_ = 0;  // of all ranks
  std::size_t checkpoint_bytes_ = 0;
  PlannedState planned_;  // without the bytes that lines_ have
  std::optional<MeasuredNetwork> network_;
  ResidentParams resident_;     // of rank 0
  std::size_t lent_bytes_ = 0;  // work of samples in buffers of steps
};

/// What a plan that fills a device as far as it can leaves to be used: all but a part for what no plan
/// sees.
[[nodiscard]] std::size_t usable_device_bytes(std::size_t device_bytes);

/// Bytes of host memory that a save may hold back (--save-staging): given, or by rule: the whole
/// shard up to 2 GiB, beyond that an eighth of it but at least 2 GiB. One page if
/// nothing is saved during the run, locally or to --out.
[[nodiscard]] std::size_t save_staging_bytes(const RunConfig& options, std::size_t state_bytes);

}  // namespace tessera
