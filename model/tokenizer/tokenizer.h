// Text to token ids and back: the interface of every kind of tokenizer. Which kinds there are, and
// how one is made of files: kinds.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/types.h"

namespace tessera {

/// What becomes of a special token's content (`<|im_end|>`) that stands in the text.
enum class SpecialText : std::uint8_t {
  is_token,  // its id, as Hugging Face's tokenizers give by default
  is_text    // the ids of its characters: text of strangers cannot end a turn
};

/// Where a text may be cut so that the ids of the parts, one after the other, are those of the whole.
enum class TextCut : std::uint8_t {
  anywhere,   // between any two characters
  at_spaces,  // in front of a single space between two ASCII letters, "a| b"
  nowhere
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Name of its row in the table of kinds: "bytes", "sentencepiece", "tokenizer.json", ...
  [[nodiscard]] const std::string& kind() const noexcept { return kind_; }
  /// XXH3-128 of the file that it was made of, as text; empty for bytes.
  [[nodiscard]] const std::string& hash() const noexcept { return hash_; }

  /// Every id is below it.
  [[nodiscard]] virtual Index vocab_size() const = 0;
  /// Id that ends a document; -1: none is known.
  [[nodiscard]] virtual Index end_token() const = 0;
  /// Ids at which a model that writes text stops: the end of a document and of a turn.
  [[nodiscard]] virtual std::vector<Index> stop_tokens() const;
  /// Ids that a document begins with (Llama 3: <|begin_of_text|>); `encode` does not add them.
  [[nodiscard]] virtual std::vector<std::uint32_t> begin_tokens() const { return {}; }
  /// Id of text that the vocabulary has nothing for; -1: there is no such text.
  [[nodiscard]] virtual Index unknown_token() const { return -1; }
  /// Id of the token with exactly this content ("<|im_start|>").
  [[nodiscard]] virtual std::optional<Index> token_id(std::string_view content) const = 0;
  /// Whether line ends come back when ids are decoded.
  [[nodiscard]] virtual bool keeps_line_ends() const { return true; }
  [[nodiscard]] virtual TextCut text_cut() const { return TextCut::nowhere; }
  /// Most bytes to encode in one call.
  [[nodiscard]] virtual std::size_t max_call_bytes() const = 0;

  /// Appends the ids of `text` (UTF-8) to `ids`. Safe to call from several threads. Throws
  /// FormatError for text that is not UTF-8 (where that matters), or that a pattern of the
  /// tokenizer does not get through.
  virtual void encode(std::string_view text, std::vector<std::uint32_t>& ids,
                      SpecialText special) const = 0;
  void encode(std::string_view text, std::vector<std::uint32_t>& ids) const {
    encode(text, ids, SpecialText::is_token);
  }
  /// The text of `ids`. Ids outside the vocabulary stand for nothing. The ids of a part may end
  /// within a character.
  [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> ids) const = 0;

 protected:
  Tokenizer(std::string kind, std::string hash) : kind_(std::move(kind)), hash_(std::move(hash)) {}

 private:
  std::string kind_;
  std::string hash_;
};

/// The ids that end a text which a model writes: the tokenizer's stop tokens, and `end_token` of the
/// data that it was trained on (-1: none).
[[nodiscard]] std::vector<std::int32_t> end_tokens_of(const Tokenizer& tokenizer, Index end_token);

}  // namespace tessera
