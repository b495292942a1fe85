#include "runtime/run/option_changes.h"

#include <string_view>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/quantity.h"
#include "runtime/run/config_file.h"
#include "runtime/run/option_table.h"

namespace tessera {
namespace {

// Whether a text of another version is one that this one takes.
bool can_be_read(const OptionRow& row, const std::string& text) {
  try {
    RunConfig ignored;
    row.setting.set(ignored, text, row.name);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

// What `auto` comes to beside it: "auto (20)". `config` are resolved.
std::string resolved_text(const OptionRow& row, const std::string& text, const RunConfig& config) {
  const std::string_view name = row.name;
  std::string shown = text.empty() ? row.standard : text;
  if (shown != "auto") {
    return shown;
  }
  const std::string value =
      name == "warmup"           ? fmt::format("{}", *config.schedule.warmup)
      : name == "decay-steps"    ? fmt::format("{}", *config.schedule.decay_steps)
      : name == "schedule-steps" ? fmt::format("{}", *config.schedule.span)
      : name == "weight-decay"   ? fmt::format("{}", *config.optimizer.weight_decay)
      : name == "muon-lr"        ? fmt::format("{}", *config.optimizer.muon_lr)
      : name == "precision"      ? std::string(precision_name(*config.compute.precision))
      : name == "logits-bytes"   ? format_bytes(config.compute.logits_bytes)
                                 : std::string();
  return value.empty() ? shown : fmt::format("{} ({})", shown, value);
}

}  // namespace

RunConfig stored_config(const StoredOptions& stored) {
  RunConfig config;
  for (const OptionRow& row : option_table()) {
    const std::string name = std::string("--") + row.name;
    const auto found = stored.find(row.name);
    if (takes_several(row.form)) {
      for (const std::string& text :
           found == stored.end() ? std::vector<std::string>{} : split_values(found->second)) {
        row.setting.set(config, text, name);
      }
      continue;
    }
    row.setting.set(config, row.standard, name);
    if (found == stored.end()) {
      continue;
    }
    try {
      row.setting.set(config, found->second, name);
    } catch (const ConfigError&) {  // of another version: compared as text
    }
  }
  return config;
}

std::vector<OptionChange> changed_options(const StoredOptions& stored, const RunConfig& now) {
  const RunConfig before = resolved(stored_config(stored));
  const RunConfig after = resolved(now);
  std::vector<OptionChange> changes;
  for (const auto& [name, text] : now.texts.effective) {
    const OptionRow& row = *find_option(name);
    const auto found = stored.find(name);
    const bool is_stored = found != stored.end();
    const bool is_read = !is_stored || can_be_read(row, found->second);
    if (is_read ? row.setting.is_equal(before, after) : found->second == text) {
      continue;
    }
    if (!is_used(row, before) && !is_used(row, after)) {
      continue;  // it changes nothing
    }
    const std::string old = is_stored ? found->second : std::string();
    changes.push_back({name, is_read ? resolved_text(row, old, before) : old,
                       resolved_text(row, text, after), is_stored});
  }
  return changes;
}

}  // namespace tessera
