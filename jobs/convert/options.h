// The command line of convert.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "model/huggingface_files.h"
#include "runtime/data/tokenizer_match.h"

namespace tessera {

struct ConvertOptions {
  std::string command;  // import, export, merge, quantise
  std::filesystem::path from;
  std::filesystem::path to;
  HuggingFaceOptions huggingface;
  std::string like;
  std::string base;                 // of merge
  bool adapters = false;            // of export: as PEFT's folder
  std::optional<Index> vocab_size;  // of import; empty: the model's own
  OnTokenizerMismatch on_mismatch = OnTokenizerMismatch::refuse;
};

/// Empty if help or the version was asked for and printed. Throws ConfigError.
[[nodiscard]] std::optional<ConvertOptions> parse_convert_options(int argc, char** argv);

}  // namespace tessera
