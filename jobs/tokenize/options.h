// The command line of tokenize.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/types.h"
#include "model/tokenizer/chat/chat_encoder.h"
#include "model/tokenizer/kinds.h"
#include "runtime/data/id_file.h"

namespace tessera::tokenize {

using Path = std::filesystem::path;

// Values of --tokenizer that are not a file.
inline constexpr std::string_view kBytes = kBytesKind;
inline constexpr std::string_view kIds = "ids";
inline constexpr Index kMaxVocab = Index{1} << 31U;  // of a token file

struct Options {
  std::vector<Path> paths;
  Path out;
  std::string tokenizer;
  std::string tokenizer_kind;  // empty: the files decide
  std::string field;           // of JSON Lines; empty: they are not read, or are chats
  std::string chat;            // format of chats in JSON Lines; empty: there are none
  ChatLoss chat_loss = ChatLoss::assistant;
  Index skip_bad = 0;  // lines of JSON Lines that are left out, at most
  std::vector<Path> masks;
  RawIds raw = RawIds::none;
  std::optional<Index> vocab;
  std::optional<Index> end_token;
  double held_out = 0;  // share of the documents; 0: none
  Path held_out_path;
  unsigned threads = 1;
  bool check = false;
  bool as_text = false;  // JSON and the like, if they are UTF-8
};

/// nullopt: --help or --version was answered. Throws ConfigError.
[[nodiscard]] std::optional<Options> parse_options(int argc, char** argv);

/// Fills in defaults and refuses what does not go together.
void complete(Options& options);

/// Throws ConfigError with this sentence.
[[noreturn]] void refuse(std::string_view message);

}  // namespace tessera::tokenize
