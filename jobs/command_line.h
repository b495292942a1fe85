// Options of programs that take words beside them: `generate RUN --prompt TEXT`. What every program
// answers to --help, -h and --version.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/program_options.hpp>

#include "runtime/run/command_words.h"

namespace tessera {

struct CommandLine {
  boost::program_options::variables_map given;
  std::vector<std::string> words;  // that are not options, in their order
};

/// --help, -h and --version.
[[nodiscard]] boost::program_options::options_description general_options();

/// What --version prints: "inspect of tessera 0.1.0".
[[nodiscard]] std::string version_line(std::string_view program);

/// Reads the options `shown` and general_options(), and the words beside them. Empty if help
/// (`usage` and the options) or the version was asked for and printed. Throws ConfigError on an
/// option that is not known or lacks its value.
[[nodiscard]] std::optional<CommandLine> read_command_line(
    int argc, char** argv, std::string_view program, std::string_view usage,
    const boost::program_options::options_description& shown,
    Abbreviations abbreviations = Abbreviations::taken);

/// The text of an option; empty where it is not given and has no default.
[[nodiscard]] std::string text_of(const boost::program_options::variables_map& given,
                                  const std::string& name);
/// Whether a switch is given and on. Throws ConfigError where its text is neither true nor false.
[[nodiscard]] bool is_on(const boost::program_options::variables_map& given,
                         const std::string& name);

}  // namespace tessera
