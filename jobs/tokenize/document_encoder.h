// A document's text to token ids, in pieces where the tokenizer's ids stay the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "model/tokenizer/kinds.h"
#include "runtime/data/text_file.h"

namespace tessera::tokenize {

class DocumentEncoder {
 public:
  /// `tokenizer`, made of `files`, must outlive it.
  DocumentEncoder(const TokenizerFiles& files, const Tokenizer& tokenizer);

  [[nodiscard]] const Tokenizer& tokenizer() const noexcept { return tokenizer_; }
  /// Where a document may be cut; empty: anywhere between characters.
  [[nodiscard]] const std::optional<TextCuts>& cuts() const noexcept { return cuts_; }

  /// Appends the ids of a piece of a document, the first of it or not. Safe to call from several
  /// threads, as below.
  void encode_piece(std::string_view text, bool is_first, std::vector<std::uint32_t>& ids) const;
  /// Appends the ids of a whole document. Throws FormatError, a clause: "has more than ...", where it
  /// is too long to be encoded.
  void encode(std::string_view text, std::vector<std::uint32_t>& ids) const;

 private:
  const Tokenizer& tokenizer_;
  std::optional<TextCuts> cuts_;
  bool continues_words_;  // pieces behind the first are encoded by encode_behind_cut
};

}  // namespace tessera::tokenize
