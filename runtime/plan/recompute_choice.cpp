#include "runtime/plan/recompute_choice.h"

#include <array>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace tessera {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// A level in the first layers, and one in all others.
struct Mix {
  Recompute first;
  Recompute others;
};
constexpr std::array kMixes = {
    Mix{Recompute::attention, Recompute::none}, Mix{Recompute::mlp, Recompute::none},
    Mix{Recompute::block, Recompute::none}, Mix{Recompute::block, Recompute::attention},
    Mix{Recompute::block, Recompute::mlp}};

RecomputeLevels levels_of(const Mix& mix, Index first, Index layers) {
  if (first == 0 ||
      first >= layers - 1) {  // the last layer saves nothing, and computes nothing again
    return first == 0 ? mix.others : mix.first;
  }
  std::vector<RecomputePart> parts = {{mix.first, first}};
  if (mix.others != Recompute::none) {
    parts.push_back({mix.others, std::nullopt});
  }
  return RecomputeLevels(std::move(parts));
}

class Chooser {
 public:
  Chooser(RunConfig options, const ModelConfig& config, int world_size, const MemoryLimits& limits)
      : options_(std::move(options)), config_(config), world_size_(world_size), limits_(limits) {}

  RecomputeLevels best() {
    RecomputeLevels found = Recompute::block;
    double least = kNever;
    for (const Mix& mix : kMixes) {
      const auto seconds = [&](Index first) {
        return seconds_of(levels_of(mix, first, config_.num_layers));
      };
      const Index first = best_of(seconds);
      if (const double then = seconds(first); then < least) {
        found = levels_of(mix, first, config_.num_layers);
        least = then;
      }
    }
    return found;
  }

 private:
  // Of a step, or of the recomputation in it; kNever where it does not fit.
  double seconds_of(const RecomputeLevels& levels) {
    if (!may_offload_inputs(options_, levels)) {
      return kNever;
    }
    options_.memory.recompute = levels;
    const MemoryPlan plan(options_, config_, world_size_, limits_);
    if (!plan.fits() || (limits_.device_bytes != 0 &&
                         plan.device_bytes() > usable_device_bytes(limits_.device_bytes))) {
      return kNever;
    }
    return options_.compute.device == DeviceKind::cuda
               ? plan.estimate().step_seconds
               : recompute_seconds(options_, config_, levels);
  }

  // So many of the first layers: the fewest that fit, and from there on as many as make the step
  // shorter, which they do at first or never.
  template <typename Seconds>
  [[nodiscard]] Index best_of(const Seconds& seconds) const {
    Index low = 0;
    Index high = config_.num_layers;
    while (low < high) {
      const Index middle = low + (high - low) / 2;
      const double now = seconds(middle);
      if (now == kNever || seconds(middle + 1) < now) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  RunConfig options_;
  const ModelConfig& config_;
  int world_size_;
  const MemoryLimits& limits_;
};

}  // namespace

RunConfig with_recompute(const RunConfig& options, const ModelConfig& config, int world_size,
                         const MemoryLimits& limits) {
  RunConfig chosen = options;
  if (!options.memory.recompute) {
    chosen.memory.recompute = Chooser(options, config, world_size, limits).best();
  }
  return chosen;
}

std::string recompute_text(const RunConfig& options, const MemoryPlan& plan) {
  return options.memory.recompute ? std::string()
                                  : fmt::format("--recompute auto is {} here\n",
                                                plan.settings().scratch.recompute.text());
}

}  // namespace tessera
