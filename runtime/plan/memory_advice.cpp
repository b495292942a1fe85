#include "runtime/plan/memory_advice.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/quantity.h"
#include "runtime/plan/recompute_choice.h"
#include "runtime/plan/start_command.h"

namespace tessera {
namespace {

constexpr int kMostRanks = 4096;  // that are proposed
constexpr std::size_t kLargestLines = 3;
constexpr const char* kAllRecomputed = "--recompute block";

struct Change {
  std::string text;
  std::function<void(RunConfig&)> apply;
};
using Changes = std::vector<Change>;

// From what costs least time to what costs most.
Changes possible_changes(const RunConfig& options) {
  Changes changes;
  const bool is_cuda = options.compute.device == DeviceKind::cuda;
  if (is_cuda && options.memory.resident.kind != ResidentKind::automatic) {
    changes.push_back({"--resident-bytes auto", [](RunConfig& o) { o.memory.resident = {}; }});
  }
  if (options.memory.masters == MasterStorage::f32) {
    changes.push_back({"--master-weights auto",
                       [](RunConfig& o) { o.memory.masters = MasterStorage::automatic; }});
  }
  if (options.batch.batched_forward > 1) {
    changes.push_back({"--batched-forward 1", [](RunConfig& o) {
                         o.batch.batched_forward = 1;
                         o.batch.batched_backward = false;
                       }});
  }
  if (options.batch.micro_batch > 1) {
    changes.push_back({"--micro-batch 1", [](RunConfig& o) { o.batch.micro_batch = 1; }});
  }
  if (options.memory.recompute && options.memory.recompute != Recompute::block) {
    changes.push_back(
        {kAllRecomputed, [](RunConfig& o) { o.memory.recompute = Recompute::block; }});
  }
  if (is_cuda && options.memory.inputs == InputPlacement::device) {
    changes.push_back({"--offload-activations",  // with the one before: no run without
                       [](RunConfig& o) { o.memory.inputs = InputPlacement::host; }});
  }
  if (options.memory.grad_offload.kind != OffloadKind::none) {
    changes.push_back({"no --grad-offload", [](RunConfig& o) { o.memory.grad_offload = {}; }});
  } else if (is_cuda && options.parallel.zero != ZeroStage::one &&
             options.parallel.reduce_group == 1) {
    changes.push_back({"--grad-offload auto", [](RunConfig& o) {
                         o.memory.grad_offload = {OffloadKind::automatic, 0};
                       }});
  }
  if (is_cuda && options.compute.fp8_weights.value_or(CodeStorage::at_use) != CodeStorage::at_use) {
    changes.push_back({"--fp8-weights auto", [](RunConfig& o) { o.compute.fp8_weights.reset(); }});
  }
  if (is_cuda && options.memory.param_blocks) {
    changes.push_back({"--param-blocks auto", [](RunConfig& o) { o.memory.param_blocks.reset(); }});
  }
  if (options.parallel.zero == ZeroStage::one || options.parallel.zero == ZeroStage::two) {
    changes.push_back({"--zero auto", [](RunConfig& o) { o.parallel.zero.reset(); }});
  }
  if (is_cuda && options.memory.params == ParamPlacement::device) {
    changes.push_back({"--params auto", [](RunConfig& o) { o.memory.params.reset(); }});
  }
  // Rounded: the last resorts.
  if (options.adapters.rank && options.adapters.base != BaseStorage::nf4) {
    changes.push_back(
        {"--base-dtype nf4", [](RunConfig& o) { o.adapters.base = BaseStorage::nf4; }});
  }
  if (options.optimizer.rule.kind == OptimizerKind::adamw &&
      options.optimizer.rule.adamw.moments == MomentType::f32) {
    changes.push_back({"--moments bf16",
                       [](RunConfig& o) { o.optimizer.rule.adamw.moments = MomentType::bf16; }});
  }
  return changes;
}

class Adviser {
 public:
  Adviser(const RunConfig& options, const ModelConfig& config, int world_size,
          const MemoryLimits& limits)
      : options_(options), config_(config), world_size_(world_size), limits_(limits) {}

  [[nodiscard]] std::vector<MemoryProposal> proposals() const {
    std::vector<MemoryProposal> made;
    const Changes set = smallest_set();
    if (!set.empty()) {
      made.push_back(proposal(set, world_size_));
    }
    const bool fits_here = !made.empty() && made.front().fits;
    for (const Changes& changes : {Changes(), fits_here ? Changes() : set}) {
      if (const int ranks = ranks_that_fit(changes); ranks != 0) {
        made.push_back(proposal(changes, ranks));
        break;
      }
    }
    return made;
  }

  [[nodiscard]] MemoryAdvice advice() const {
    std::vector<std::string> parts;
    std::string command;
    int ranks = 0;
    for (const MemoryProposal& each : proposals()) {
      if (each.fits && command.empty()) {
        command = start_command(each.options, each.ranks, each.changes);
        ranks = each.ranks;
      }
      const std::string set = fmt::format("{}", fmt::join(each.changes, " "));
      const bool is_one = each.changes.size() == 1;
      if (each.ranks != world_size_) {
        parts.push_back(fmt::format("{} ranks{} fit {}", each.ranks, nodes_of(each.ranks),
                                    set.empty() ? "as it is" : "with " + set));
      } else if (each.fits) {
        parts.push_back(
            fmt::format("{} {} it fit, with {}", set, is_one ? "makes" : "make", needs_of(each)));
      } else {
        parts.push_back(fmt::format("{} {} not enough on {}: the run then needs {}", set,
                                    is_one ? "is" : "are", counted(world_size_, "rank"),
                                    needs_of(each)));
      }
    }
    if (command.empty()) {
      parts.push_back("take a smaller model, a smaller --seq, or more memory; most is taken by " +
                      largest());
    }
    return {.text = fmt::format("{}", fmt::join(parts, "; ")), .command = command, .ranks = ranks};
  }

 private:
  [[nodiscard]] RunConfig changed(const Changes& changes) const {
    RunConfig options = options_;
    for (const Change& change : changes) {
      change.apply(options);
    }
    return options;
  }

  // Nothing where these options make no run of so many ranks.
  [[nodiscard]] std::optional<MemoryPlan> plan(const Changes& changes, int ranks) const {
    try {
      return MemoryPlan(changed(changes), config_, ranks, limits_);
    } catch (const ConfigError&) {
      return std::nullopt;
    }
  }

  [[nodiscard]] MemoryProposal proposal(const Changes& changes, int ranks) const {
    MemoryProposal proposed = {.changes = {}, .ranks = ranks, .options = changed(changes)};
    for (const Change& change : changes) {
      proposed.changes.push_back(change.text);
    }
    if (const std::optional<MemoryPlan> made = plan(changes, ranks)) {
      proposed.fits = made->fits();
      proposed.device_bytes = made->device_bytes();
      proposed.node_bytes = made->node_bytes();
    }
    return proposed;
  }

  [[nodiscard]] bool fits(const Changes& changes, int ranks) const {
    const std::optional<MemoryPlan> made = plan(changes, ranks);
    return made && made->fits();
  }

  // Adds changes while they bring the run nearer to fitting, and drops those that were not needed.
  [[nodiscard]] Changes smallest_set() const {
    Changes set;
    std::optional<MemoryPlan> best = plan(set, world_size_);
    for (const Change& change : possible_changes(options_)) {
      if (best && best->fits()) {
        break;
      }
      Changes more = set;
      more.push_back(change);
      std::optional<MemoryPlan> then = plan(more, world_size_);
      if (then && (!best || then->missing_bytes() < best->missing_bytes())) {
        set = std::move(more);
        best = std::move(then);
      }
    }
    for (std::size_t i = 0; best && best->fits() && i < set.size();) {
      Changes fewer = set;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      if (fits(fewer, world_size_)) {
        set = std::move(fewer);
      } else {
        ++i;
      }
    }
    if (best && best->fits()) {
      recompute_no_more_than_needed(set);
    }
    return set;
  }

  // In a set that fits: the levels of --recompute auto in the place of whole blocks everywhere.
  void recompute_no_more_than_needed(Changes& set) const {
    const auto whole = std::find_if(
        set.begin(), set.end(), [](const Change& change) { return change.text == kAllRecomputed; });
    if (whole == set.end()) {
      return;
    }
    RunConfig options = changed(set);
    options.memory.recompute.reset();
    const std::optional<RecomputeLevels> levels =
        with_recompute(options, config_, world_size_, limits_).memory.recompute;
    if (levels == options_.memory.recompute) {
      set.erase(whole);
      return;
    }
    *whole = {fmt::format("--recompute {}", levels->text()),
              [levels](RunConfig& o) { o.memory.recompute = levels; }};
  }

  // 0: none up to kMostRanks.
  [[nodiscard]] int ranks_that_fit(const Changes& changes) const {
    // more ranks than micro-batches would be idle
    const RunConfig options = changed(changes);
    const Index most =
        std::min<Index>(kMostRanks, options.batch.global_batch / options.batch.micro_batch);
    for (int ranks = 2 * world_size_; ranks <= most; ranks *= 2) {
      if (fits(changes, ranks)) {
        return ranks;
      }
    }
    return 0;
  }

  [[nodiscard]] std::string nodes_of(int ranks) const {
    const int nodes = (ranks + limits_.ranks_per_node - 1) / limits_.ranks_per_node;
    return nodes == 1 ? std::string() : fmt::format(" on {} nodes", nodes);
  }

  [[nodiscard]] std::string needs_of(const MemoryProposal& made) const {
    const std::string host =
        fmt::format("{} of host memory on each node", format_bytes(made.node_bytes));
    return options_.compute.device == DeviceKind::cpu
               ? host
               : fmt::format("{} of device memory on each rank and {}",
                             format_bytes(made.device_bytes), host);
  }

  [[nodiscard]] std::string largest() const {
    const std::optional<MemoryPlan> made = plan({}, world_size_);
    std::vector<PlanLine> lines = made ? made->lines() : std::vector<PlanLine>();
    std::stable_sort(lines.begin(), lines.end(),
                     [](const PlanLine& a, const PlanLine& b) { return a.bytes > b.bytes; });
    lines.resize(std::min(lines.size(), kLargestLines));
    std::vector<std::string> names;
    names.reserve(lines.size());
    for (const PlanLine& line : lines) {
      names.push_back(fmt::format("{} ({})", line.name, format_bytes(line.bytes)));
    }
    return fmt::format("{}", fmt::join(names, ", "));
  }

  const RunConfig& options_;
  const ModelConfig& config_;
  int world_size_;
  const MemoryLimits& limits_;
};

}  // namespace

std::vector<MemoryProposal> memory_proposals(const RunConfig& options, const ModelConfig& config,
                                             int world_size, const MemoryLimits& limits) {
  return Adviser(options, config, world_size, limits).proposals();
}

MemoryAdvice memory_advice(const RunConfig& options, const ModelConfig& config, int world_size,
                           const MemoryLimits& limits) {
  return Adviser(options, config, world_size, limits).advice();
}

}  // namespace tessera
