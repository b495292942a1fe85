// Tokenizers that split text by patterns and encode the bytes of each word by byte pair encoding:
// GPT-2's and what followed it. Which file says so: tokenizer_json.h, tiktoken.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/byte_pairs.h"
#include "model/tokenizer/nfc.h"
#include "model/tokenizer/split_pattern.h"
#include "model/tokenizer/tokenizer.h"

namespace tessera {

/// A step of splitting. Each piece that one step makes is what the next one splits, and all that its
/// pattern can see.
struct SplitStep {
  enum class Action : std::uint8_t {
    isolate,          // matches and what is between them are pieces
    keep_matches,     // matches are pieces, the rest is dropped
    begin_with_space  // a piece that does not begin with a space gets one
  };
  Action action = Action::isolate;
  std::optional<SplitPattern> pattern;  // empty for begin_with_space
};

/// For look-ups by views of text.
struct TextHash {
  // NOLINTNEXTLINE(readability-identifier-naming): the standard library looks for this name
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const noexcept {
    return std::hash<std::string_view>{}(text);
  }
};
using WordIds = std::unordered_map<std::string, std::uint32_t, TextHash, std::equal_to<>>;

/// What a file says about a tokenizer.
struct ByteLevelFacts {
  std::string kind;
  std::string hash;
  std::vector<std::string> tokens;  // bytes that an id stands for; of ids that are free: none
  WordIds words;                    // the ids that words can become, by their bytes
  std::vector<BytePairs::Pair> pairs;
  bool takes_whole_words = false;  // a word that is a token is not built from its pairs
  std::optional<NfcTables> nfc;    // text is brought to it first
  std::vector<AddedToken> added;
  std::vector<SplitStep> steps;
  std::vector<std::uint32_t> begin_tokens;
  Index end_token = -1;
  std::vector<Index> stop_tokens;
  TextCut text_cut = TextCut::nowhere;
};

/// The bytes that UTF-8 is made of and `words` has no token for; empty: every text can be encoded.
[[nodiscard]] std::string missing_bytes(const WordIds& words);

class ByteLevelTokenizer final : public Tokenizer {
 public:
  /// Requires: missing_bytes(facts.words) is empty, ids below tokens.size(). Throws ConfigError in a
  /// build without a library that it needs.
  explicit ByteLevelTokenizer(ByteLevelFacts facts);
  ~ByteLevelTokenizer() override;

  [[nodiscard]] Index vocab_size() const override { return std::ssize(facts_.tokens); }
  [[nodiscard]] Index end_token() const override { return facts_.end_token; }
  [[nodiscard]] std::vector<Index> stop_tokens() const override { return facts_.stop_tokens; }
  [[nodiscard]] std::vector<std::uint32_t> begin_tokens() const override {
    return facts_.begin_tokens;
  }
  [[nodiscard]] std::optional<Index> token_id(std::string_view content) const override;
  [[nodiscard]] TextCut text_cut() const override { return facts_.text_cut; }
  [[nodiscard]] std::size_t max_call_bytes() const override;
  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<std::uint32_t>& ids,
              SpecialText special) const override;
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const override;

 private:
  struct Scratch;  // of one call at a time; kept for the next one
  class Lease;

  void encode_normalized(std::string_view text, SpecialText special, Scratch& scratch,
                         std::vector<std::uint32_t>& ids) const;
  void encode_piece(std::string_view piece, std::size_t step, Scratch& scratch,
                    std::vector<std::uint32_t>& ids) const;
  void encode_word(std::string_view word, Scratch& scratch, std::vector<std::uint32_t>& ids) const;
  void build_word(std::string_view word, Scratch& scratch, std::vector<std::uint32_t>& ids) const;

  ByteLevelFacts facts_;
  BytePairs pairs_;
  std::optional<Nfc> nfc_;
  AddedTokens raw_added_;         // looked for in the text as it is
  AddedTokens normalized_added_;  // and in the normalized text
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> free_scratch_;
};

}  // namespace tessera
