// Whether token ids and what they are given to speak of the same tokens: data, a second file of
// data, evaluation data, the weights of --init, a run that is continued, the tokenizer of generate.
// The rules are written down in runtime/data/token_file.md.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/run_tokenizer.h"
#include "runtime/data/token_file.h"

namespace tessera {

/// What is known of the tokenizer behind ids.
struct TokenizerFacts {
  std::string source;      // whose ids they are, for messages: "--data corpus.h5"
  std::string kind;        // of model/tokenizer/kinds.h; "ids": not known
  std::string name;        // file name of its model; may be empty
  Index vocab_size = 0;    // ids are below it; 0: not known
  std::string model_hash;  // XXH3-128 of its model; empty: it has none
};

/// Of a token file that was given to `option`.
[[nodiscard]] TokenizerFacts tokenizer_of(const TokenFile& file, std::string_view option);
[[nodiscard]] TokenizerFacts tokenizer_of(const RunTokenizer& tokenizer, std::string source);
/// Of a run's folder (tokens.json), or of a Hugging Face folder (tokenizer.model, else
/// tokenizer.json). Empty if it holds none. Throws FormatError.
[[nodiscard]] std::optional<TokenizerFacts> tokenizer_of_folder(const std::filesystem::path& folder,
                                                                std::string source);

/// What to do where they differ.
enum class OnTokenizerMismatch : std::uint8_t { refuse, report };

/// Compares, and refuses or remembers what differs.
class TokenizerCheck {
 public:
  explicit TokenizerCheck(OnTokenizerMismatch action) : action_(action) {}

  /// Throws ConfigError, saying both sides, if `mine` and `theirs` are known to be different
  /// tokenizers, or one is not known and has ids that the other has not.
  void compare(const TokenizerFacts& mine, const TokenizerFacts& theirs);
  /// Throws ConfigError if a model with a vocabulary of `model_vocab` was not made for these
  /// tokens: if its vocabulary is larger by more than padding explains (kPaddingTokens, or a
  /// sixteenth of it). One that is smaller is the loader's to refuse, whatever is allowed.
  void compare_vocabulary(const TokenizerFacts& tokens, Index model_vocab);
  /// For the log, each once: what differs and was allowed, and what could not be compared.
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }

 private:
  void differ(const std::string& what, std::string_view advice);
  void report_unknown(const TokenizerFacts& tokens);

  OnTokenizerMismatch action_;
  bool reported_unknown_ = false;
  std::vector<std::string> notes_;
};

/// A model's vocabulary may exceed its tokenizer's by so many tokens, or by a sixteenth of its own,
/// if that is more: padding to a multiple (of published models DeepSeek V2's is widest, 2.3%).
inline constexpr Index kPaddingTokens = 128;
inline constexpr Index kPaddingPart = 16;

}  // namespace tessera
