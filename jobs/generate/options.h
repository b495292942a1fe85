// The command line of generate.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device/stream.h"
#include "model/sampler.h"
#include "runtime/data/tokenizer_match.h"

namespace tessera::generation {

struct Options {
  std::filesystem::path from;
  std::string base;  // of adapters; empty: `from` is a model
  std::string prompt;
  std::string chat;    // auto, a format's name or its file; empty: a text is continued
  std::string system;  // what the chat begins with
  std::vector<std::int32_t> prompt_ids;
  std::string tokenizer;
  std::string tokenizer_kind;  // empty: the files decide
  OnTokenizerMismatch on_mismatch = OnTokenizerMismatch::refuse;
  GenerationOptions generation;
  Index samples = 1;
  bool print_ids = false;
  Device device;
  DType dtype = DType::f32;
};

/// Empty if help or the version was asked for and printed. Throws ConfigError, DeviceError.
[[nodiscard]] std::optional<Options> parse_options(int argc, char** argv);

/// Throws ConfigError with this sentence.
[[noreturn]] void refuse(const std::string& message);

}  // namespace tessera::generation
