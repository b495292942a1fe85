// Text of documents to token ids, on several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "jobs/tokenize/document_encoder.h"
#include "jobs/tokenize/outputs.h"

namespace tessera::tokenize {

/// Encodes pieces of text on several threads and writes them in their order.
class TextEncoder {
 public:
  TextEncoder(const DocumentEncoder& encoder, Outputs& outputs, unsigned threads)
      : encoder_(encoder), tokenizer_(encoder.tokenizer()), outputs_(outputs), threads_(threads) {}

  /// The next pieces are of a document of so many bytes.
  void begin_document(std::uint64_t hash, std::uint64_t bytes);
  void add(std::string_view text);
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
    std::uint64_t document_hash;
    std::uint64_t document_bytes;
    bool is_first;
    bool is_last;
  };

  void count_losses(const Piece& piece);

  void encode();

  const DocumentEncoder& encoder_;
  const Tokenizer& tokenizer_;
  Outputs& outputs_;
  unsigned threads_;
  std::uint64_t document_hash_ = 0;
  std::uint64_t document_bytes_ = 0;
  bool is_first_ = true;
  std::vector<Piece> pieces_;
  std::size_t bytes_ = 0;
  Index unknown_tokens_ = 0;
  Index unknown_documents_ = 0;
  bool document_has_unknown_ = false;
  Index lost_line_ends_ = 0;
};

}  // namespace tessera::tokenize
