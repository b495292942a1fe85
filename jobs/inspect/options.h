// The command line of inspect.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "kernels/base/types.h"

namespace tessera::inspect {

struct Options {
  std::filesystem::path target;
  std::string param;
  std::string at;  // indices of one of its elements; empty: none
  std::string diff;
  Index seq = 0;  // tokens of a sequence, for a token file; 0: several
  bool stats = false;
  bool verify = false;
  bool hash = false;
  bool command = false;
  bool json = false;
  [[nodiscard]] bool has_action() const {
    return stats || verify || hash || command || !param.empty() || !diff.empty();
  }
};

/// nullopt: --help was answered. Throws ConfigError.
[[nodiscard]] std::optional<Options> parse_options(int argc, char** argv);

}  // namespace tessera::inspect
