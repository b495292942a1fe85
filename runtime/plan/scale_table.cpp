#include "runtime/plan/scale_table.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/quantity.h"
#include "kernels/base/round_up.h"
#include "runtime/run/run_length.h"

namespace tessera {
namespace {

constexpr int kMostRanksShown = 512;
constexpr double kGiga = 1e9;
constexpr double kPercent = 100;
constexpr double kHour = 3600;

bool is_given(const RunConfig& options, std::string_view name) {
  const std::vector<std::string>& given = options.texts.given;
  return std::find(given.begin(), given.end(), name) != given.end();
}

// Three digits of small numbers too.
std::string hours_text(double hours) {
  constexpr double kMany = 100;
  constexpr double kLeast = 1e-4;
  return hours >= kMany    ? fmt::format("{:.0f}", hours)
         : hours >= kLeast ? fmt::format("{:.3g}", hours)
                           : "<0.0001";
}

ScaleRow row_of(RunConfig options, const ModelConfig& config, int ranks, int of_node,
                MemoryLimits limits) {
  limits.ranks_per_node = std::min(ranks, of_node);
  limits.node_ranks = limits.ranks_per_node;
  options.parallel.ranks_per_node = limits.ranks_per_node;
  options = with_steps(std::move(options), 0);
  const MemoryPlan plan(options, config, ranks, limits);
  ScaleRow row = {.ranks = ranks,
                  .nodes = divide_up(ranks, of_node),
                  .global_batch = options.batch.global_batch,
                  .reduce_group = options.parallel.reduce_group,
                  .fits = plan.fits(),
                  .device_bytes = plan.device_bytes(),
                  .estimate = plan.estimate()};
  if (options.length.tokens) {
    row.run_seconds = row.estimate.step_seconds * static_cast<double>(options.steps);
  }
  return row;
}

}  // namespace

std::vector<ScaleRow> scale_rows(const RunConfig& options, const ModelConfig& config, int ranks,
                                 int of_node, const MemoryLimits& limits) {
  const Index micro_batches = options.batch.global_batch / options.batch.micro_batch;
  const Index of_rank = divide_up(micro_batches, ranks);
  std::set<int> all = {ranks};
  for (int each = 1; each <= kMostRanksShown; each *= 2) {
    all.insert(each);
  }
  std::vector<ScaleRow> rows;
  for (const int each : all) {
    RunConfig changed = options;
    changed.batch.global_batch = of_rank * options.batch.micro_batch * each;
    rows.push_back(row_of(changed, config, each, of_node, limits));
    if (each > of_node && each % of_node == 0 && of_node > 1 &&
        !is_given(options, "reduce-group")) {
      changed.parallel.reduce_group = of_node;
      rows.push_back(row_of(changed, config, each, of_node, limits));
    }
  }
  return rows;
}

std::string scale_text(const RunConfig& options, int of_node, const std::vector<ScaleRow>& rows) {
  const ScaleRow& first = rows.front();
  const double alone = first.estimate.tokens_per_second / first.ranks;
  const Index micro_batches = first.global_batch / options.batch.micro_batch / first.ranks;
  const bool has_hours = options.length.tokens.has_value();
  std::string out = fmt::format(
      "The global batch grows with the ranks: each has {} of {} x {}\ntokens a step. Nodes have {} "
      "({}--ranks-per-node).\n"
      "{:>5}{:>6}{:>6}{:>7}{:>8}{:>9}{:>7}{:>8}{:>7}{:>7} {}\n",
      micro_batches == 1 ? "1 micro-batch" : fmt::format("{} micro-batches", micro_batches),
      options.batch.micro_batch, options.batch.seq, counted(of_node, "rank"),
      options.parallel.ranks_per_node == 0 ? "assumed; " : "", "ranks", "nodes", "group", "batch",
      "step s", "tokens/s", "a rank", "exposed", "GB out", "GB mem",
      has_hours ? fmt::format("{:>9}", "hours") : std::string());
  bool has_misfit = false;
  for (const ScaleRow& row : rows) {
    const StepEstimate& e = row.estimate;
    has_misfit = has_misfit || !row.fits;
    out += fmt::format(
        "{:>5}{:>6}{:>6}{:>7}{:>8.3f}{:>9.0f}{:>6.1f}%{:>7.1f}%{:>7.1f}{:>7.1f}{}{}\n", row.ranks,
        row.nodes, row.reduce_group, row.global_batch, e.step_seconds, e.tokens_per_second,
        kPercent * e.tokens_per_second / row.ranks / alone,
        kPercent * e.exposed_seconds() / e.step_seconds, e.network_bytes / kGiga,
        static_cast<double>(row.device_bytes) / kGiga, row.fits ? " " : "!",
        has_hours ? fmt::format("{:>9}", hours_text(row.run_seconds / kHour)) : std::string());
  }
  out += "group: --reduce-group. batch: --global-batch. a rank: tokens/s of a rank beside\n"
         "the first row's. exposed: what nothing hides, of a step. GB out: what a rank\n"
         "sends to other nodes in a step. GB mem: of a device.\n";
  if (has_misfit) {
    out += "!: does not fit the memory; --plan --ranks N says what would.\n";
  }
  return out + rows.back().estimate.basis_text();
}

nlohmann::json scale_json(const std::vector<ScaleRow>& rows) {
  nlohmann::json all = nlohmann::json::array();
  for (const ScaleRow& row : rows) {
    const StepEstimate& e = row.estimate;
    all.push_back({{"ranks", row.ranks},
                   {"nodes", row.nodes},
                   {"global_batch", row.global_batch},
                   {"reduce_group", row.reduce_group},
                   {"fits", row.fits},
                   {"device_bytes", row.device_bytes},
                   {"step_seconds", e.step_seconds},
                   {"tokens_per_second", e.tokens_per_second},
                   {"exposed_exchange_seconds", e.exposed_exchange_seconds},
                   {"exposed_update_seconds", e.exposed_update_seconds},
                   {"network_bytes", e.network_bytes},
                   {"run_seconds",
                    row.run_seconds > 0 ? nlohmann::json(row.run_seconds) : nlohmann::json()}});
  }
  return all;
}

}  // namespace tessera
