// Options of programs that take words beside them: `generate RUN --prompt TEXT`.
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
  std::vector<std::string> words;  // that are no options, in their order
};

/// Reads the options `shown`, which have --help and --version, and the words beside them. Empty if
/// help (`usage` and the options) or the
/// version was asked for and printed. Throws ConfigError on an option that is not known or lacks
/// its value.
[[nodiscard]] std::optional<CommandLine> read_command_line(
    int argc, char** argv, std::string_view program, std::string_view usage,
    const boost::program_options::options_description& shown,
    Abbreviations abbreviations = Abbreviations::taken);

}  // namespace tessera
