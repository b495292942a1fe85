#include "runtime/plan/fit_search.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/quantity.h"
#include "runtime/plan/start_command.h"
#include "runtime/run/option_table.h"

namespace tessera {
namespace {

constexpr std::array<Index, 8> kMicroBatches = {1, 2, 4, 8, 16, 32, 64, 128};
constexpr std::array<const char*, 5> kLevels = {"none", "attention", "mlp", "block", "auto"};
constexpr std::array<Index, 4> kSideBySide = {2, 4, 8, 16};
constexpr std::size_t kShown = 10;
constexpr double kGiga = 1e9;

struct Choice {
  std::string name;
  std::string value;
};
using Choices = std::vector<Choice>;

class Search {
 public:
  Search(const RunConfig& options, const ModelConfig& config, int ranks, const MemoryLimits& limits)
      : options_(options), config_(config), ranks_(ranks), limits_(limits) {}

  std::vector<FittingRun> found() && {
    for (const std::string& micro : micro_batches()) {
      for (const std::string& levels : values_of("recompute", {kLevels.begin(), kLevels.end()})) {
        attempt({{"micro-batch", micro}, {"recompute", levels}});
      }
      for (const std::string& beside : breadths(micro)) {
        // side by side, blocks are computed again whatever --recompute says
        for (const char* levels : {"none", "block"}) {
          attempt({{"micro-batch", micro}, {"recompute", levels}, {"batched-forward", beside}});
        }
      }
    }
    if (std::none_of(runs_.begin(), runs_.end(),
                     [](const FittingRun& run) { return run.fits(); })) {
      attempt_last_resorts();
    }
    std::stable_sort(runs_.begin(), runs_.end(), [](const FittingRun& a, const FittingRun& b) {
      return a.missing_bytes != b.missing_bytes
                 ? a.missing_bytes < b.missing_bytes
                 : a.estimate.tokens_per_second > b.estimate.tokens_per_second;
    });
    leave_out_what_gains_nothing();
    return std::move(runs_);
  }

 private:
  [[nodiscard]] bool is_given(std::string_view name) const {
    const std::vector<std::string>& given = options_.texts.given;
    return std::find(given.begin(), given.end(), name) != given.end();
  }

  // One empty value, which changes nothing, for what was given.
  [[nodiscard]] std::vector<std::string> values_of(std::string_view name,
                                                   std::vector<std::string> values) const {
    return is_given(name) ? std::vector<std::string>{""} : std::move(values);
  }

  [[nodiscard]] std::vector<std::string> micro_batches() const {
    std::vector<std::string> values;
    for (const Index micro : kMicroBatches) {
      if (options_.batch.global_batch % micro == 0 &&
          micro * ranks_ <= options_.batch.global_batch) {
        values.push_back(std::to_string(micro));
      }
    }
    return values_of("micro-batch", values.empty() ? std::vector<std::string>{"1"} : values);
  }

  // More than one, and no more than a rank has micro-batches.
  [[nodiscard]] std::vector<std::string> breadths(const std::string& micro) const {
    const Index size = micro.empty() ? options_.batch.micro_batch : std::stoll(micro);
    std::vector<std::string> values;
    for (const Index beside : kSideBySide) {
      if (beside <= micro_batches_of(0, options_.batch.global_batch / size, ranks_)) {
        values.push_back(std::to_string(beside));
      }
    }
    return is_given("batched-forward") ? std::vector<std::string>() : values;
  }

  // Of the sorted runs that fit, those that need as much of both memories as one before.
  void leave_out_what_gains_nothing() {
    std::vector<FittingRun> kept;
    for (FittingRun& run : runs_) {
      const bool gains =
          !run.fits() || std::none_of(kept.begin(), kept.end(), [&](const auto& faster) {
            return faster.device_bytes <= run.device_bytes && faster.node_bytes <= run.node_bytes;
          });
      if (gains) {
        kept.push_back(std::move(run));
      }
    }
    runs_ = std::move(kept);
  }

  // With everything that saves memory of the device or of the node.
  void attempt_last_resorts() {
    const Choices smaller = {{"logits-bytes", "32MiB"}, {"attention-slice-bytes", "256MiB"}};
    for (const char* levels : {"block", "mlp", "attention", "none"}) {
      for (const char* sums : {"", "auto"}) {
        for (const char* state : {"", "none", "all"}) {
          for (const bool is_smaller : {false, true}) {
            Choices choices = {{"micro-batch", "1"}, {"recompute", levels}};
            choices.push_back({"grad-offload", sums});
            choices.push_back({"resident-bytes", state});
            if (is_smaller) {
              choices.insert(choices.end(), smaller.begin(), smaller.end());
            }
            attempt(choices);
          }
        }
      }
    }
  }

  void attempt(const Choices& choices) {
    RunConfig options = options_;
    std::vector<std::string> changes;
    for (const Choice& choice : choices) {
      if (!choice.value.empty() && !is_given(choice.name)) {
        find_option(choice.name)->setting.set(options, choice.value, "--" + choice.name);
        changes.push_back(fmt::format("--{} {}", choice.name, choice.value));
      }
    }
    try {
      const MemoryPlan plan(options, config_, ranks_, limits_);
      for (std::string& change : changes) {
        if (change == "--recompute auto") {
          change = fmt::format("--recompute {}", plan.settings().scratch.recompute.text());
        }
      }
      if (seen_.insert(changes).second) {
        runs_.push_back({.changes = std::move(changes),
                         .device_bytes = plan.device_bytes(),
                         .node_bytes = plan.node_bytes(),
                         .missing_bytes = plan.missing_bytes(),
                         .estimate = plan.estimate()});
      }
    } catch (const ConfigError&) {  // options that make no run together
    }
  }

  const RunConfig& options_;
  const ModelConfig& config_;
  int ranks_;
  const MemoryLimits& limits_;
  std::set<std::vector<std::string>> seen_;
  std::vector<FittingRun> runs_;
};

double exposed_share(const StepEstimate& e) {
  return e.exposed_seconds() / e.step_seconds;
}

std::string settings_text(const FittingRun& run) {
  return run.changes.empty() ? "as given" : fmt::format("{}", fmt::join(run.changes, " "));
}

constexpr double kHour = 3600;

// Of the run whose length was asked for; the default number of steps is not.
std::optional<double> run_seconds(const RunConfig& options, const FittingRun& run) {
  const std::vector<std::string>& given = options.texts.given;
  const bool is_asked = std::any_of(given.begin(), given.end(), [](const std::string& name) {
    return name == "tokens" || name == "steps";
  });
  return is_asked && options.steps > 0
             ? std::optional(run.estimate.step_seconds * static_cast<double>(options.steps))
             : std::nullopt;
}

std::string hours_text(const std::optional<double>& seconds) {
  return seconds ? fmt::format("  {:>7.4g}", *seconds / kHour) : std::string();
}

std::string nothing_text(const MemoryLimits& limits, const std::vector<FittingRun>& runs) {
  if (runs.empty()) {
    return "Nothing fits: no setting that was tried makes a run with these options.\n";
  }
  const FittingRun& nearest = runs.front();
  const auto of = [](std::size_t bytes, std::size_t limit) {
    return limit == 0 ? format_bytes(bytes)
                      : fmt::format("{} of {}", format_bytes(bytes), format_bytes(limit));
  };
  return fmt::format("Nothing fits, of {}: the nearest, {}, takes {} of a device "
                     "(--device-memory) and {} of a node's host memory (--host-memory).\n",
                     counted(std::ssize(runs), "setting"), settings_text(nearest),
                     of(nearest.device_bytes, limits.device_bytes),
                     of(nearest.node_bytes, limits.host_bytes));
}

}  // namespace

std::vector<FittingRun> find_fitting_runs(const RunConfig& options, const ModelConfig& config,
                                          int ranks, const MemoryLimits& limits) {
  return Search(options, config, ranks, limits).found();
}

std::string fit_text(const RunConfig& options, int ranks, const MemoryLimits& limits,
                     const std::vector<FittingRun>& runs) {
  if (runs.empty() || !runs.front().fits()) {
    return nothing_text(limits, runs);
  }
  const bool has_hours = run_seconds(options, runs.front()).has_value();
  std::string out = fmt::format(" tokens/s{}  GB card  GB host  exposed  settings\n",
                                has_hours ? "    hours" : "");
  for (std::size_t i = 0; i < std::min(kShown, runs.size()) && runs[i].fits(); ++i) {
    const FittingRun& run = runs[i];
    constexpr double kPercent = 100;
    out += fmt::format("{:>9.0f}{}  {:>7.2f}  {:>7.2f}  {:>6.1f}%  {}\n",
                       run.estimate.tokens_per_second, hours_text(run_seconds(options, run)),
                       static_cast<double>(run.device_bytes) / kGiga,
                       static_cast<double>(run.node_bytes) / kGiga,
                       kPercent * exposed_share(run.estimate), settings_text(run));
  }
  return out +
         fmt::format("exposed: update, exchange and transfers that nothing hides, of a step. "
                     "GB host: of a node.\nAll give the same results bit for bit, but for "
                     "other values of --micro-batch, --logits-bytes and "
                     "--attention-slice-bytes.\n{}{}The fastest:\n  {}\n",
                     runs.front().estimate.basis_text(),
                     has_hours ? run_length_text(options, runs.front().estimate) : std::string(),
                     start_command(options, ranks, runs.front().changes));
}

nlohmann::json fit_json(const RunConfig& options, int ranks, const std::vector<FittingRun>& runs) {
  nlohmann::json all = nlohmann::json::array();
  for (const FittingRun& run : runs) {
    const std::optional<double> seconds = run_seconds(options, run);
    all.push_back({{"fits", run.fits()},
                   {"run_seconds", seconds ? nlohmann::json(*seconds) : nlohmann::json()},
                   {"tokens_per_second", run.estimate.tokens_per_second},
                   {"step_seconds", run.estimate.step_seconds},
                   {"exposed_share", exposed_share(run.estimate)},
                   {"device_bytes", run.device_bytes},
                   {"node_bytes", run.node_bytes},
                   {"changes", run.changes},
                   {"command", start_command(options, ranks, run.changes)}});
  }
  return all;
}

}  // namespace tessera
