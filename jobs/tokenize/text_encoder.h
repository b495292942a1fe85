// Text of documents to token ids, on several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/kinds.h"
#include "runtime/data/token_file.h"

namespace tessera::tokenize {

/// Encodes pieces of text on several threads and writes them in their order.
class TextEncoder {
 public:
  /// `continues_words`: pieces behind the first of a document are encoded by encode_behind_cut
  /// (space_cut.h), else as they are.
  TextEncoder(const Tokenizer& tokenizer, bool continues_words, unsigned threads)
      : tokenizer_(tokenizer), continues_words_(continues_words), threads_(threads) {}

  /// `text` is a piece of a document of `writer`; the first one of it, or not.
  void add(std::string_view text, TokenFileWriter& writer, bool is_first);
  void end_document();
  /// Between pieces of one long document.
  void make_room();

  /// Encodes and writes what is held.
  void flush();

  /// What of the text the tokens do not hold.
  void print_losses() const;

 private:
  struct Piece {
    std::string text;
    std::vector<std::uint32_t> ids;
    TokenFileWriter* writer;
    bool is_first;
    bool is_last;
  };

  void count_losses(const Piece& piece);

  void encode();
  void encode(Piece& piece) const;

  const Tokenizer& tokenizer_;
  bool continues_words_;
  unsigned threads_;
  std::vector<Piece> pieces_;
  std::size_t bytes_ = 0;
  Index unknown_tokens_ = 0;
  Index unknown_documents_ = 0;
  bool document_has_unknown_ = false;
  Index lost_line_ends_ = 0;
};

}  // namespace tessera::tokenize
