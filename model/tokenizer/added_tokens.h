// Tokens that are found in a text before it is split into words: special tokens, and what else a
// tokenizer's file lists as added. The longest at the leftmost place counts, as in Hugging Face's
// tokenizers (AddedVocabulary).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/tokenizer/split_pattern.h"
#include "model/tokenizer/tokenizer.h"

namespace tessera {

struct AddedToken {
  std::string content;
  std::uint32_t id = 0;
  bool single_word = false;  // not where a letter, digit or mark of a word stands beside it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space behind it
  bool normalized = false;   // looked for in the normalised text
  bool special = false;
};

/// Longer content is not a token.
inline constexpr std::size_t kMostAddedBytes = 4096;

class AddedTokens {
 public:
  /// Requires: contents not empty, at most kMostAddedBytes. Of equal contents the first counts.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  [[nodiscard]] bool is_empty() const noexcept { return tokens_.empty(); }

  struct Match {
    std::size_t begin = 0;  // with the white space that it takes
    std::size_t end = 0;
    std::uint32_t id = 0;
    std::size_t content_end = 0;  // where the search continues
  };
  /// The first match whose content begins at byte `from` of `text` or behind. It takes no white
  /// space before byte `taken`, the end of the match before it. `special`: is_text: special tokens
  /// are not matches.
  [[nodiscard]] std::optional<Match> find(std::string_view text, std::size_t from,
                                          std::size_t taken, SpecialText special) const;

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;

  /// Place in tokens_ of the longest token that `text` begins with.
  [[nodiscard]] std::uint32_t longest_at(std::string_view text) const;
  [[nodiscard]] bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) const;

  std::vector<AddedToken> tokens_;
  std::vector<std::uint32_t> ends_;  // of each node of a trie: place of the token that ends there
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;  // node * 256 + byte
  std::array<bool, 256> begins_ = {};
  std::optional<SplitPattern> word_;  // a character of a word, where a token asks
};

}  // namespace tessera
