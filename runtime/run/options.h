// The options of `train` as words: the command line, the file of --config, the settings of a
// benchmark; and the effective configuration as text. The command line wins over the file; what
// neither gives has its default.
#pragma once

#include <span>
#include <string>

#include "runtime/run/config.h"

namespace tessera {

enum class OptionsAction : std::uint8_t { run, help, version };

struct ParsedOptions {
  OptionsAction action = OptionsAction::run;
  RunConfig config;
};

/// Throws ConfigError: unknown option, missing or malformed value, unknown key in the --config
/// file, options that exclude each other.
[[nodiscard]] ParsedOptions parse_options(int argc, const char* const* argv);
/// The same of "name=value" and, for a switch, "name", as one program gives them for another;
/// `source` names what takes them in messages. What only a run needs may be missing.
[[nodiscard]] RunConfig config_of_settings(std::span<const std::string> settings,
                                           const std::string& source);
/// For StartGuard: --timeout-seconds as these arguments give it, its default where they make no
/// run, and at least 10, because a busy machine may start MPI slowly.
[[nodiscard]] double start_seconds(int argc, const char* const* argv);
/// Logs a warning for each old name of an option that was given: once a run, on one rank.
void warn_of_old_names(const RunConfig& config);
/// What --help prints.
[[nodiscard]] std::string options_help();
/// "name = value" lines, as --config reads them: what shapes the run, and all else that is not the
/// default. They make the same run.
[[nodiscard]] std::string printed_text(const RunConfig& config);

}  // namespace tessera
