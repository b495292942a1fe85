// The table of options of `train`: each has one row, with its name, default, help and the field of
// RunConfig that it sets. Parsing, help, what ranks must agree on and what a checkpoint stores read
// it.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/run/config.h"

namespace tessera {

/// Shapes: the model, the data, the arithmetic: part of the effective configuration. Session: where
/// output goes and how the job behaves. Both must be the same on every rank: they decide results,
/// or which collectives there are and when, or they are rank 0's alone, which would ignore another
/// rank's. Local: each rank obeys its own value, which changes neither results nor the order of
/// collectives; give the reason beside it.
enum class OptionRole : std::uint8_t { shapes, session, local };

/// List: several values behind the name. Repeated: one behind each of several names, so that words
/// of a text without quotes are not taken for several texts.
enum class OptionForm : std::uint8_t { value, flag, flag_or_size, list, repeated };
[[nodiscard]] constexpr bool takes_several(OptionForm form) noexcept {
  return form == OptionForm::list || form == OptionForm::repeated;
}

/// What else must be chosen for an option to do anything.
struct OptionNeed {
  /// Null: nothing.
  bool (*is_met)(const RunConfig&) = nullptr;
  /// Follows the option's name: "needs --eval-data".
  const char* text = "";
  /// Whether the option is refused without it; otherwise the run says that it does nothing.
  bool is_strict = false;
};

/// How the text of an option becomes a value of RunConfig.
struct OptionSetting {
  /// Throws ConfigError that says `name`, the option with its dashes.
  std::function<void(RunConfig&, const std::string& text, const std::string& name)> set;
  std::function<bool(const RunConfig&, const RunConfig&)> is_equal;
  /// The value as a number, written in one way ("1e-3" is "0.001"); empty or null where it is none.
  std::function<std::string(const RunConfig&)> number;
  std::string range;  // of a number, for help: "1 to 1024"; else empty
};

struct OptionRow {
  std::string group;
  std::string name;      // without dashes
  std::string argument;  // as help shows it: "BYTES|auto"
  std::string standard;  // the default, as text
  std::string help;
  OptionRole role;
  OptionForm form;
  OptionNeed need;
  OptionSetting setting;
};

/// The group of what --plan alone, and limits, are about.
inline constexpr const char* kPlanGroup = "Memory plan";

[[nodiscard]] const std::vector<OptionRow>& option_table();
/// Null where there is none of this name.
[[nodiscard]] const OptionRow* find_option(std::string_view name);
[[nodiscard]] std::vector<std::string> option_names();
/// A name that an option had before 0.2, and its name. Command lines, files of --config, settings
/// of benchmarks and checkpoints may hold it.
struct OldName {
  std::string_view old_name;
  std::string_view name;
};
[[nodiscard]] std::span<const OldName> old_names();
/// The name of the option that has, or had, this name; any other text as it is.
[[nodiscard]] std::string current_name(std::string_view name);
/// What a user of an old name reads. Empty for any other text.
[[nodiscard]] std::string old_name_note(std::string_view name);
/// The configuration of the defaults alone.
[[nodiscard]] const RunConfig& default_config();
/// Whether the option has another value than its default.
[[nodiscard]] bool differs_from_default(const OptionRow& row, const RunConfig& config);
/// Whether the option does something beside the others of this configuration.
[[nodiscard]] bool is_used(const OptionRow& row, const RunConfig& config);

/// What --attention-slice-bytes is where it is not given.
inline constexpr const char* kAttentionSlices = "2400MiB";

}  // namespace tessera
