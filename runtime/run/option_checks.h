// What options mean together: what makes no run, and what does nothing in one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/run/config.h"

namespace tessera {

/// Throws ConfigError for options that exclude each other, in a plan or a run.
void check_together(const RunConfig& config);
/// The same for what a run needs beside what a plan does.
void check_run(const RunConfig& config);
/// The same for the steps of a run, once they are known.
void check_steps(const RunConfig& config);
/// What was asked for and does nothing, or less than it says, in a run of `ranks` ranks: a sentence
/// each.
[[nodiscard]] std::vector<std::string> idle_options(const RunConfig& config, int ranks);
enum class PathKind : std::uint8_t { any, file, folder };

/// Throws ConfigError with the reason where what was given to `option` is not there, may not be
/// read, or is a folder in place of a file or the other way round. `wanted` says what is: "a token
/// file (tokenize makes them)".
void require_readable(std::string_view option, const std::filesystem::path& path,
                      std::string_view wanted, PathKind kind = PathKind::any);

}  // namespace tessera
