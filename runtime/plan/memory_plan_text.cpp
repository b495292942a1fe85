// What a memory plan says: the table, what was saved by what, one line, JSON.
#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/base/file_status.h"
#include "kernels/base/quantity.h"
#include "model/huggingface.h"
#include "model/json_text.h"
#include "model/nf4_files.h"
#include "model/packed_layout.h"
#include "runtime/data/data_loader.h"
#include "runtime/launch/idle_ranks.h"
#include "runtime/plan/memory_advice.h"
#include "runtime/plan/memory_plan.h"
#include "runtime/run/base_cache.h"

namespace tessera {

namespace {

// "63.4 hours (2.6 days)", "12.0 minutes", "0.42 seconds".
std::string hours_text(double seconds) {
  constexpr double kMinute = 60;
  constexpr double kHour = 3600;
  constexpr double kDay = 24 * kHour;
  if (seconds < kMinute) {
    return fmt::format("{:.3g} seconds", seconds);
  }
  if (seconds < kHour) {
    return fmt::format("{:.1f} minutes", seconds / kMinute);
  }
  return fmt::format(
      "{:.1f} hours{}", seconds / kHour,
      seconds < 2 * kDay ? std::string() : fmt::format(" ({:.1f} days)", seconds / kDay));
}

std::string weight_codes_text(CodeStorage storage) {
  switch (storage) {
    case CodeStorage::stored:
      return "8-bit weights: those of all blocks are stored on the device, in both layouts\n";
    case CodeStorage::one_layout:
      return "8-bit weights: those of all blocks are stored on the device, in one layout; backward "
             "passes transpose one block at a time\n";
    case CodeStorage::at_use:
      break;
  }
  return "8-bit weights: made anew by each pass, one block at a time\n";
}

}  // namespace

std::string_view MemoryPlan::params_stored() const noexcept {
  if (!shards_params(settings_, world_size_)) {
    return "whole";
  }
  return settings_.params == ParamPlacement::host ? "shards on the host" : "shards";
}

std::string MemoryPlan::params_text() const {
  std::string text;
  if (precision_choice(options_) == Precision::fp8) {
    text = weight_codes_text(settings_.scratch.fp8_weights);
  }
  if (!shards_params(settings_, world_size_)) {
    return options_.memory.param_blocks
               ? text + "--param-blocks does nothing: every rank stores all parameters\n"
               : text;
  }
  text += fmt::format(
      "Parameters: each rank stores {} {}; blocks are gathered ahead of use, {} at a time\n",
      world_size_ == 1 ? std::string("all of them") : fmt::format("1/{} of them", world_size_),
      settings_.params == ParamPlacement::host ? "in pinned host memory" : "on its device",
      std::min(settings_.param_blocks, config_.num_layers));
  if (const double seconds = sample_seconds(); seconds > 0) {
    const std::string tokens = counted(options_.sample.tokens, "token");
    text +=
        sample_texts(options_) == 1
            ? fmt::format("Samples: each token gathers all blocks, so that one of {} takes about "
                          "{:.2g} s\n",
                          tokens, seconds)
            : fmt::format("Samples: the {} prompts gather all blocks together, once for a token "
                          "of each, so that {} each take about {:.2g} s\n",
                          sample_texts(options_), tokens, seconds);
  }
  return text;
}

std::vector<MemoryPlan::Saving> MemoryPlan::savings() const {
  const std::optional<AdapterConfig> adapters = adapter_config(options_);
  const ParamLayout model(config_);
  const ParamLayout layout = adapters ? AdapterLayout(config_, *adapters).params() : model;
  const PrecisionPolicy& precision = settings_.scratch.precision;
  std::size_t block_gradients = 0;
  for (const ParamUnit& unit : layout.units()) {
    block_gradients += unit.place == GradPlace::block_slot
                           ? static_cast<std::size_t>(unit.count) * size_in_bytes(precision.grads)
                           : 0;
  }
  std::size_t slots = 0;
  std::size_t logits = 0;
  std::size_t resident = 0;
  for (const PlanLine& line : lines_) {
    slots += line.name == "gradient slots" ? line.bytes : 0;
    logits += line.name == "logits chunk" ? line.bytes : 0;
    resident += line.name == "optimizer state" && line.kind == MemoryKind::device ? line.bytes : 0;
  }
  const auto sums = [](Index elements) {
    return sizeof(float) * static_cast<std::size_t>(elements);
  };
  std::size_t params = 0;
  for (const PlanLine& line : lines_) {
    params +=
        line.name.starts_with("parameter") && line.kind == MemoryKind::device ? line.bytes : 0;
  }
  Index whole = 0;  // elements of the model, as padded as shards have them
  for (const ParamUnit& unit : model.units()) {
    whole += padded_count(unit.count, world_size_);
  }
  std::vector<Saving> all = {
      {has_nf4_base() ? "parameters in nf4 (device)" : "parameters in shards (device)", params,
       static_cast<std::size_t>(whole) * size_in_bytes(precision.params)},
      {"sharded gradient sums", sums(shard_.shard_size()), sums(shard_.total_params)},
      {"one gradient workspace for all blocks", slots, block_gradients},
      {"logits in chunks", logits,
       static_cast<std::size_t>(settings_.scratch.batch.tokens() *
                                logits_stride(config_.vocab_size, precision.activations)) *
           size_in_bytes(precision.activations)},
      {"paged optimizer state (device)", resident, std::max(resident, state_bytes_)}};
  if (options_.sample.every > 0) {
    std::size_t own = 0;
    for (const PlanLine& line : lines_) {
      own += line.name == "generation" ? line.bytes : 0;
    }
    all.push_back({"samples in the buffers of steps", own, own + lent_bytes_});
  }
  return all;
}

std::string MemoryPlan::state_text() const {
  return fmt::format(
      "Optimizer state, {:g} bytes per parameter: {} on each rank, {} without sharding, {:.1f}% "
      "saved\nResident on rank 0, of {} of which it stores a part: {} ({})\n",
      planned_.element_bytes, format_bytes(state_bytes_), format_bytes(all_state_bytes_),
      100 * shard_.memory_savings(), counted(resident_.stored, "parameter"), resident_.count,
      resident_.names);
}

const char* MemoryPlan::place_of(const PlanLine& line) const noexcept {
  return options_.compute.device == DeviceKind::cpu ? "host" : memory_kind_name(line.kind);
}

Index MemoryPlan::trained_count() const {
  const std::optional<AdapterConfig> adapters = adapter_config(options_);
  return adapters ? AdapterLayout(config_, *adapters).params().total_count()
                  : parameter_count(config_);
}

// Empty where the model itself is trained.
std::string MemoryPlan::trained_text() const {
  const std::optional<AdapterConfig> adapters = adapter_config(options_);
  return adapters ? fmt::format(" and {} of adapters, which alone are trained ({})",
                                trained_count(), adapter_text(*adapters))
                  : std::string();
}

// Empty where the base is stored as parameters are.
std::string MemoryPlan::base_text() const {
  if (!has_nf4_base()) {
    return {};
  }
  return settings_.adapters->random_base ? ", the base random codes in nf4"
                                         : ", the base's blocks in nf4";
}

std::string MemoryPlan::network_text() const {
  if (!network_) {
    return {};
  }
  const StepEstimate e = estimate();
  const double waiting =
      e.exposed_exchange_seconds + e.exposed_update_seconds + e.exposed_param_seconds;
  return fmt::format("a rank sends {} to other hosts in a step: {:.3g} s at the measured rates{}\n",
                     format_bytes(static_cast<std::size_t>(e.network_bytes)), e.network_seconds,
                     options_.compute.device == DeviceKind::cuda
                         ? fmt::format("; estimated at these: {:.4g} s a step, {:.1f}% of it "
                                       "exchange and update that nothing hides",
                                       e.step_seconds, 100 * waiting / e.step_seconds)
                         : std::string());
}

std::string MemoryPlan::text() const {
  return text(shortage());
}

std::string MemoryPlan::text(const MemoryAdvice& lacks) const {
  const ParamLayout layout(config_);
  std::string out =
      fmt::format("Memory of one rank of {}: {} parameters{}, {}{}{}, micro-batch {} x {} tokens\n",
                  world_size_, layout.total_count(), trained_text(),
                  dtype_name(settings_.scratch.precision.params),
                  precision_choice(options_) == Precision::fp8 ? " and fp8" : "", base_text(),
                  options_.batch.micro_batch, options_.batch.seq);
  if (const std::string objective = objective_text(settings_.scratch.loss.terms);
      !objective.empty()) {
    out += fmt::format("Training minimises {}; evaluations give the cross entropy\n", objective);
  }
  out += fmt::format("  {:<34} {:<12} {:>12}\n", "what", "where", "bytes");
  for (const PlanLine& line : lines_) {
    out += fmt::format("  {:<34} {:<12} {:>12}\n", line.name, place_of(line),
                       format_bytes(line.bytes));
  }
  if (options_.compute.device == DeviceKind::cuda) {
    out += fmt::format(
        "  {:<34} {:<12} {:>12}{}\n", "total", "device", format_bytes(device_bytes()),
        limits_.device_bytes == 0 ? std::string()
                                  : fmt::format("  of {}", format_bytes(limits_.device_bytes)));
  }
  out += fmt::format(
      "  {:<34} {:<12} {:>12}{}\n",
      "total of a node, " + counted(std::min(limits_.ranks_per_node, world_size_), "rank"), "host",
      format_bytes(node_bytes()),
      limits_.host_bytes == 0 ? std::string()
                              : fmt::format("  of {}", format_bytes(limits_.host_bytes)));
  out += params_text();
  out += state_text();
  std::string saved;
  for (const Saving& saving : savings()) {
    if (saving.with >= saving.without) {
      continue;
    }
    saved += fmt::format("  {:<40} {:>12} instead of {:>12}\n", saving.name,
                         format_bytes(saving.with), format_bytes(saving.without));
  }
  out += saved.empty() ? saved : "Memory saved by:\n" + saved;
  if (options_.compute.device == DeviceKind::cuda) {
    out += estimate().text();
    if (precision_choice(options_) == Precision::fp8) {
      out += "The estimate has all GEMMs at the rate of bf16: those of fp8 are faster.\n";
    }
  }
  if (fits()) {
    out += limits_.host_bytes == 0 ? "It fits the devices.\n" : "It fits.\n";
  } else {
    out += fmt::format("It does not fit: {}.\n", lacks.text);
  }
  if (const std::string why = sample_refusal(); !why.empty()) {
    out += fmt::format("It would not start: {}.\n", why);
  }
  return out;
}

std::uint64_t MemoryPlan::base_cache_bytes() const {
  const std::string& init = options_.model.init;
  if (!has_nf4_base() || settings_.adapters->random_base || init.empty() ||
      (path_exists(std::filesystem::path(init) / kConfigFile) && is_nf4_folder(init))) {
    return 0;
  }
  return tessera::base_cache_bytes(
      PackedLayout(config_, ParamLayout(config_), settings_.scratch.precision.params));
}

std::string MemoryPlan::disk_text() const {
  const auto keeps = static_cast<std::size_t>(options_.checkpoint.keep);
  const std::uint64_t cache = base_cache_bytes();
  const bool has_several = options_.checkpoint.save_every > 0;
  return fmt::format(
      "On disk: {} a checkpoint{}{}\n", format_bytes(checkpoint_bytes_),
      has_several ? fmt::format(", {} with --keep {} while the next is written",
                                format_bytes((keeps + 1) * checkpoint_bytes_), keeps)
                  : std::string(),
      cache > 0 ? fmt::format("; {} of the base's blocks in nf4, in {}/base-nf4",
                              format_bytes(cache), options_.out.empty() ? "OUT" : options_.out)
                : std::string());
}

std::string MemoryPlan::run_text() const {
  std::string out = disk_text();
  if (options_.compute.device == DeviceKind::cpu) {
    if (options_.length.tokens) {
      out += "How long it takes on CPUs is not estimated: not measured.\n";
    }
    return out;
  }
  if (options_.steps > 0) {
    out += run_length_text(options_, estimate());
  }
  return out;
}

std::string run_length_text(const RunConfig& options, const StepEstimate& estimate) {
  const double seconds = estimate.step_seconds * static_cast<double>(options.steps);
  const std::string time =
      estimate.is_bound_by_launches
          ? std::string()
          : fmt::format(
                ", in {}{}, without evaluations and saves", hours_text(seconds),
                rates_are_measured(options.plan.card) ? "" : " (not measured: assumed rates)");
  return fmt::format("The run: {} {} of {} tokens, {} tokens in all{}\n", grouped(options.steps),
                     options.steps == 1 ? "step" : "steps",
                     grouped(options.batch.global_batch * options.batch.seq),
                     grouped(options.steps * options.batch.global_batch * options.batch.seq), time);
}

std::string MemoryPlan::command_text(const MemoryAdvice& lacks) const {
  if (lacks.command.empty() || !sample_refusal().empty()) {
    return {};
  }
  const int nodes = (lacks.ranks + limits_.ranks_per_node - 1) / limits_.ranks_per_node;
  const bool is_fresh = lacks.command.find(" --init ") == std::string::npos;
  return fmt::format(
      "{}{}{}:\n  {}\n", fits() ? "Start it with" : "This fits",
      is_fresh ? ", from random weights (--init FOLDER in place of --model: from a model's)" : "",
      nodes > 1 ? fmt::format(", on {} nodes of {}", nodes, counted(limits_.ranks_per_node, "rank"))
                : std::string(),
      lacks.command);
}

std::string MemoryPlan::totals_text() const {
  const auto part = [](std::size_t bytes, std::size_t limit) {
    return limit == 0 ? format_bytes(bytes)
                      : fmt::format("{} of {}", format_bytes(bytes), format_bytes(limit));
  };
  const std::string node =
      fmt::format("{} on a node with {}", part(node_bytes(), limits_.host_bytes),
                  counted(std::min(limits_.ranks_per_node, world_size_), "rank"));
  return options_.compute.device == DeviceKind::cuda
             ? fmt::format("{} on a device, {}", part(device_bytes(), limits_.device_bytes), node)
             : node;
}

std::size_t MemoryPlan::paged_state_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const PlanLine& line : lines_) {
    bytes += line.name == "optimizer state" && line.kind == MemoryKind::pinned ? line.bytes : 0;
  }
  return bytes;
}

std::string MemoryPlan::json() const {
  const MemoryAdvice lacks = shortage();
  const std::string samples = sample_refusal();
  nlohmann::json json = {{"ranks", world_size_},
                         {"ranks_per_node", std::min(limits_.ranks_per_node, world_size_)},
                         {"parameters", ParamLayout(config_).total_count()},
                         {"trained_parameters", trained_count()},
                         {"label_smoothing", options_.loss.label_smoothing},
                         {"z_loss", options_.loss.z_loss},
                         {"recompute", settings_.scratch.recompute.text()},
                         {"device_bytes", device_bytes()},
                         {"node_bytes", node_bytes()},
                         {"device_limit_bytes", limits_.device_bytes},
                         {"node_limit_bytes", limits_.host_bytes},
                         {"idle_rank_share", rank_shares(options_.batch.global_batch,
                                                         options_.batch.micro_batch, world_size_)
                                                 .idle_share},
                         {"fits", fits()},
                         {"refusal", fits() ? samples : lacks.text},
                         {"command", samples.empty() ? lacks.command : std::string()},
                         {"command_ranks_per_node", limits_.ranks_per_node}};
  json["parameters_stored"] = params_stored();
  if (has_nf4_base()) {
    json["base"] = settings_.adapters->random_base ? "random nf4" : "nf4";
  }
  if (shards_params(settings_, world_size_)) {
    json["param_blocks"] = std::min(settings_.param_blocks, config_.num_layers);
  }
  if (precision_choice(options_) == Precision::fp8) {
    json["fp8_weights"] = storage_name(settings_.scratch.fp8_weights);
  }
  json["checkpoint_bytes"] = checkpoint_bytes_;
  json["base_cache_bytes"] = base_cache_bytes();
  json["optimizer_state"] = {{"bytes_per_parameter", planned_.element_bytes},
                             {"bytes_per_rank", state_bytes_},
                             {"bytes_without_sharding", all_state_bytes_},
                             {"saved_share", shard_.memory_savings()}};
  json["resident_parameters"] = {
      {"count", resident_.count}, {"of", resident_.stored}, {"names", resident_.names}};
  if (options_.compute.device == DeviceKind::cuda) {
    const StepEstimate e = estimate();
    json["estimate"] = {{"step_seconds", e.step_seconds},
                        {"tokens_per_second", e.tokens_per_second},
                        {"rates_are_measured", rates_are_measured(options_.plan.card)},
                        {"is_bound_by_launches", e.is_bound_by_launches},
                        {"compute_seconds", e.compute_seconds},
                        {"recompute_seconds", e.recompute_seconds},
                        {"widen_seconds", e.widen_seconds},
                        {"exchange_seconds", e.exchange_seconds},
                        {"exposed_exchange_seconds", e.exposed_exchange_seconds},
                        {"update_seconds", e.update_seconds},
                        {"exposed_update_seconds", e.exposed_update_seconds},
                        {"params_seconds", e.param_seconds},
                        {"exposed_params_seconds", e.exposed_param_seconds},
                        {"network_bytes", e.network_bytes},
                        {"network_seconds", e.network_seconds},
                        {"network_is_measured", network_.has_value()}};
    if (options_.steps > 0) {
      json["run"] = {{"steps", options_.steps},
                     {"tokens", options_.steps * options_.batch.global_batch * options_.batch.seq},
                     {"seconds", e.step_seconds * static_cast<double>(options_.steps)}};
    }
  }
  json["lines"] = nlohmann::json::array();
  for (const PlanLine& line : lines_) {
    json["lines"].push_back(
        {{"name", line.name}, {"where", place_of(line)}, {"bytes", line.bytes}});
  }
  json["savings"] = nlohmann::json::array();
  for (const Saving& saving : savings()) {
    json["savings"].push_back(
        {{"name", saving.name}, {"bytes", saving.with}, {"without_bytes", saving.without}});
  }
  return json_text(json, 2);
}

}  // namespace tessera
