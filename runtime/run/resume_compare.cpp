#include "runtime/run/resume_compare.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/escaped_text.h"
#include "model/adapter_config.h"
#include "model/json_text.h"
#include "runtime/data/data_set.h"
#include "runtime/run/config_file.h"
#include "runtime/run/option_changes.h"
#include "runtime/run/option_table.h"
#include "runtime/run/run_length.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// Options whose change moves bits without changing what is computed.
bool changes_bits(const OptionChange& change) {
  if (change.name == "zero") {  // bit-identical but for 1
    return change.before == "1" || change.now == "1";
  }
  constexpr std::array<std::string_view, 14> kNames = {"micro-batch",
                                                       "moments",
                                                       "global-batch",
                                                       "device",
                                                       "precision",
                                                       "fp8-recipe",
                                                       "fp8-skip",
                                                       "threads",
                                                       "reduce-group",
                                                       "reduce",
                                                       "logits-bytes",
                                                       "attention",
                                                       "attention-slice-bytes",
                                                       "fast-attention"};
  return std::find(kNames.begin(), kNames.end(), change.name) != kNames.end();
}

// Options that the model or the data hash speaks for.
bool is_compared_otherwise(std::string_view name) {
  constexpr std::array<std::string_view, 11> kNames = {
      "model",     "data", "init",       "steps",        "epochs", "tokens",
      "documents", "lora", "lora-alpha", "lora-targets", "rslora"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

// Options of which `auto` follows --steps: the schedule's note speaks for them.
bool follows_steps(const OptionChange& change) {
  constexpr std::array<std::string_view, 3> kNames = {"warmup", "decay-steps", "schedule-steps"};
  return std::find(kNames.begin(), kNames.end(), change.name) != kNames.end() &&
         change.before.starts_with("auto") && change.now.starts_with("auto");
}

void refuse_other_model(const ManifestInfo& info, const std::filesystem::path& folder,
                        const RunIdentity& identity) {
  const std::string difference = model_difference(info.config_json, identity.config_json);
  if (!difference.empty() && !info.adapter_json.empty()) {
    throw ConfigError(
        fmt::format("{} holds adapters of another model: {}; give --init with the base "
                    "that they were trained with, or another --out",
                    folder.string(), difference),
        TESSERA_HERE);
  }
  if (!difference.empty()) {
    throw ConfigError(fmt::format("{} holds another model: {}; give another --out, or --init to "
                                  "start from its weights",
                                  folder.string(), difference),
                      TESSERA_HERE);
  }
}

void refuse_other_optimizer(const ManifestInfo& info, const std::filesystem::path& folder,
                            OptimizerKind ours) {
  if (info.optimizer && info.optimizer != ours) {
    const std::string weights =
        info.adapter_json.empty()
            ? fmt::format("--init {}", folder.string())
            : std::string("--init-adapter with what `convert export --adapter` makes of it");
    throw ConfigError(
        fmt::format("{} holds the state of optimizer {}, and this run's is {}: give --optimizer {} "
                    "to continue it, or another --out and {} to start from its weights",
                    folder.string(), optimizer_name(*info.optimizer), optimizer_name(ours),
                    optimizer_name(*info.optimizer), weights),
        TESSERA_HERE);
  }
}

// Adapters of another shape, or a model in their place.
void refuse_other_adapters(const ManifestInfo& info, const std::filesystem::path& folder,
                           const std::string& ours) {
  if (info.adapter_json == ours) {
    return;
  }
  const auto text = [&folder](const std::string& json) {
    return adapter_text(parse_adapter_json(json, folder.string()));
  };
  if (info.adapter_json.empty()) {
    throw ConfigError(fmt::format("{} holds a whole model, and this run trains adapters (--lora): "
                                  "give another --out, and --init {} to train them beside it",
                                  folder.string(), folder.string()),
                      TESSERA_HERE);
  }
  throw ConfigError(
      fmt::format("{} holds adapters of {}, and this run trains {}: give the same --lora and what "
                  "belongs to it to continue, or another --out",
                  folder.string(), text(info.adapter_json),
                  ours.empty() ? std::string("the whole model") : "adapters of " + text(ours)),
      TESSERA_HERE);
}

StoredOptions stored_in(const ManifestInfo& info) {
  const Json json = parse_json_line(info.options_json);
  StoredOptions stored;
  if (json.is_object()) {
    for (const auto& [name, value] : json.items()) {
      if (value.is_string()) {
        stored[current_name(name)] = unescaped_text(value.get<std::string>());
      }
    }
  }
  return stored;
}

// Which of the things that fix the order of the data differ, as far as the options show it.
std::string changed_data(const StoredOptions& stored, const RunConfig& now) {
  const RunConfig before = stored_config(stored);
  std::vector<std::string> changes;
  const auto compare = [&](const char* name, const auto& old, const auto& mine) {
    if (stored.contains(name) && old != mine) {
      changes.push_back(fmt::format("--{} was {} and is {}", name, old, mine));
    }
  };
  compare("seq", before.batch.seq, now.batch.seq);
  compare("seed", before.seed, now.seed);
  const auto mode_of = [](const RunConfig& config) {  // runs that do not tell: joined
    return document_mode_name(config.data.documents.value_or(DocumentMode::joined));
  };
  if (mode_of(before) != mode_of(now)) {
    changes.push_back(fmt::format("--documents was {} and is {}", mode_of(before), mode_of(now)));
  }
  if (stored.contains("data") && before.data.files != now.data.files) {
    const auto named = [](const std::vector<std::string>& texts) {
      std::vector<std::string> names;
      std::transform(texts.begin(), texts.end(), std::back_inserter(names),
                     [](const auto& text) { return split_weight(text).path.string(); });
      return names;
    };
    changes.push_back(named(before.data.files) == named(now.data.files)
                          ? fmt::format("the weights of --data were {} and are {}",
                                        stored.at("data"), join_values(now.data.files))
                          : fmt::format("--data was {} and is {}", stored.at("data"),
                                        join_values(now.data.files)));
  }
  if (changes.empty()) {
    return stored.contains("data") ? "the files of --data, or their contents, changed"
                                   : "files, weights, --seq or --seed differ";
  }
  return fmt::format("{}", fmt::join(changes, ", "));
}

// What another number of steps makes of a schedule that follows it. Empty for nothing.
std::string schedule_note(const StoredOptions& stored, const RunConfig& now,
                          std::int64_t next_step) {
  const LrSchedule is = schedule_of(now);
  if (!stored.contains("steps")) {  // checkpoints that were written before it was stored
    return now.schedule.span || now.schedule.kind == ScheduleKind::constant
               ? std::string()
               : fmt::format("the checkpoint does not tell its --steps: the schedule spans the {} "
                             "steps of this run; if the run had another number, --schedule-steps "
                             "with that number keeps its schedule",
                             is.total);
  }
  const RunConfig before = stored_config(stored);
  const LrSchedule was = schedule_of(before);
  if (before.steps == now.steps) {
    return {};
  }
  std::vector<std::string> parts;
  const auto compare = [&](const char* what, bool follows, std::int64_t old, std::int64_t mine) {
    if (follows && old != mine) {
      parts.push_back(fmt::format("{} {} steps instead of {}", what, mine, old));
    }
  };
  const bool decays = now.schedule.kind != ScheduleKind::constant;
  compare("spans", decays && !now.schedule.span, was.total, is.total);
  compare("warms up for", !now.schedule.warmup, was.warmup, is.warmup);
  compare("decays for", now.schedule.kind == ScheduleKind::wsd && !now.schedule.decay_steps,
          was.decay, is.decay);
  if (parts.empty()) {
    return {};
  }
  const std::string rate = fmt::format("{:.4g}", is.at(next_step));
  const std::string old_rate = fmt::format("{:.4g}", was.at(next_step));
  return fmt::format("{}, and the schedule follows it: it {}{}; --schedule-steps {} keeps the "
                     "schedule as it was",
                     length_change(before, now), fmt::join(parts, ", "),
                     rate == old_rate ? std::string()
                                      : fmt::format(", and the learning rate of step {} is {} "
                                                    "instead of {}",
                                                    next_step, rate, old_rate),
                     was.total);
}

void compare_options(const ManifestInfo& info, const RunConfig& options,
                     std::vector<std::string>& notes) {
  const StoredOptions stored = stored_in(info);
  if (stored.empty()) {
    return;  // an imported model has none
  }
  const std::int64_t next_step = info.step + 1;
  for (const OptionChange& change : changed_options(stored, options)) {
    if (is_compared_otherwise(change.name) || follows_steps(change)) {
      continue;
    }
    if (change.name == "lora-init") {
      notes.push_back(fmt::format("--lora-init {} was for step 1: the adapters began as {}",
                                  change.now, change.before));
      continue;
    }
    if (change.name == "base-dtype") {
      notes.push_back(
          fmt::format("--base-dtype was {} and is {} from step {} on: the adapters continue "
                      "beside other numbers than they were trained with",
                      change.before, change.now, next_step));
      continue;
    }
    notes.push_back(fmt::format(
        "--{} was {}{} and is {} from step {} on{}", change.name, change.before,
        change.is_stored ? "" : " (the default: the checkpoint does not tell)", change.now,
        next_step, changes_bits(change) ? ": the results change bit for bit" : ""));
  }
  if (std::string note = schedule_note(stored, options, next_step); !note.empty()) {
    notes.push_back(std::move(note));
  }
  for (const auto& [name, value] : stored) {
    if (find_option(name) == nullptr) {
      notes.push_back(fmt::format(
          "the checkpoint was written with --{} {}, which this train does not know", name, value));
    }
  }
}

}  // namespace

std::string model_difference(const std::string& theirs, const std::string& ours) {
  const Json before = parse_json_line(theirs);
  const Json now = Json::parse(ours);
  if (before == now) {
    return {};
  }
  const auto text = [](const Json& model, const std::string& key) {
    return model.is_object() && model.contains(key) ? shown_json(model.at(key)) : "missing";
  };
  for (const Json& model : {now, before}) {
    for (const auto& [key, value] : model.items()) {
      if (text(before, key) != text(now, key)) {
        return fmt::format("its {} is {}, this run's is {}", key, text(before, key),
                           text(now, key));
      }
    }
  }
  return "its description cannot be read";
}

std::vector<std::string> compare_run(const ManifestInfo& info, const std::filesystem::path& folder,
                                     const RunConfig& options, const RunIdentity& identity) {
  refuse_other_model(info, folder, identity);
  refuse_other_adapters(info, folder, identity.adapter_json);
  refuse_other_optimizer(info, folder, options.optimizer.rule.kind);
  std::vector<std::string> notes;
  if (!info.data_hash.empty() && info.data_hash != identity.data_hash) {
    const std::string changes = changed_data(stored_in(info), options);
    if (!options.data.allow_change) {
      throw ConfigError(
          fmt::format("{} was trained on another order of data ({}): give the same again, a new "
                      "--out for a run of its own, or --allow-data-change to continue on this data",
                      folder.string(), changes),
          TESSERA_HERE);
    }
    notes.push_back(
        fmt::format("the data order is another one from step {} on ({})", info.step + 1, changes));
  }
  if (info.gemm_table_hash != identity.gemm_table_hash) {
    const auto named = [](const std::string& hash) {
      return hash.empty() ? std::string("none") : hash;
    };
    notes.push_back(fmt::format(
        "the table of --tune-gemm was {} and is {} from step {} on: the results change bit for bit",
        named(info.gemm_table_hash), named(identity.gemm_table_hash), info.step + 1));
  }
  compare_options(
      info, with_steps(options, identity.data_sequences, {info.step, info.windows_taken}), notes);
  return notes;
}

}  // namespace tessera
