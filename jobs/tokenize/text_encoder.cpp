#include "jobs/tokenize/text_encoder.h"

#include <algorithm>
#include <iostream>

#include <fmt/format.h>

#include "jobs/program.h"
#include "kernels/base/parallel.h"

namespace tessera::tokenize {
namespace {

constexpr std::size_t kBatchBytes = std::size_t{8} << 20U;  // text held in memory
constexpr std::size_t kBatchPieces = 4096;

}  // namespace

void TextEncoder::begin_document(std::uint64_t hash, std::uint64_t bytes) {
  document_hash_ = hash;
  document_bytes_ = bytes;
  is_first_ = true;
}

void TextEncoder::add(std::string_view text) {
  pieces_.push_back({std::string(text), {}, document_hash_, document_bytes_, is_first_, false});
  bytes_ += text.size();
  is_first_ = false;
}

void TextEncoder::end_document() {
  pieces_.back().is_last = true;
  if (bytes_ >= kBatchBytes || pieces_.size() >= kBatchPieces) {
    flush();
  }
}

void TextEncoder::make_room() {
  if (bytes_ >= kBatchBytes) {
    flush();
  }
}

void TextEncoder::flush() {
  encode();
  for (const Piece& piece : pieces_) {
    if (piece.is_first) {
      outputs_.begin_document(piece.document_hash, piece.document_bytes);
      outputs_.append(tokenizer_.begin_tokens(), {}, 0);
    }
    outputs_.append(piece.ids, {}, piece.text.size(), std::ssize(piece.text));
    count_losses(piece);
    if (piece.is_last && tokenizer_.end_token() >= 0) {
      const auto end = static_cast<std::uint32_t>(tokenizer_.end_token());
      outputs_.append({&end, 1}, {}, 0);
    }
  }
  pieces_.clear();
  bytes_ = 0;
}

void TextEncoder::print_losses() const {
  if (unknown_tokens_ > 0) {
    print_lines(fmt::format("warning: {} in {}: the tokenizer has nothing for that text and "
                            "writes its unknown token, id {}\n",
                            count_of(unknown_tokens_, "unknown token", "unknown tokens"),
                            count_of(unknown_documents_, "document", "documents"),
                            tokenizer_.unknown_token()));
  }
  print_lost_line_ends(lost_line_ends_);
}

void TextEncoder::count_losses(const Piece& piece) {
  const Index unknown = std::count_if(piece.ids.begin(), piece.ids.end(), [this](std::uint32_t id) {
    return static_cast<Index>(id) == tokenizer_.unknown_token();
  });
  unknown_tokens_ += unknown;
  document_has_unknown_ = document_has_unknown_ && !piece.is_first;
  if (unknown > 0 && !document_has_unknown_) {
    document_has_unknown_ = true;
    ++unknown_documents_;
  }
  if (!tokenizer_.keeps_line_ends()) {
    lost_line_ends_ += std::count(piece.text.begin(), piece.text.end(), '\n');
  }
}

void TextEncoder::encode() {
  share_among_threads(std::ssize(pieces_), threads_, [this] {
    return [this](Index i) {
      Piece& piece = pieces_[static_cast<std::size_t>(i)];
      encoder_.encode_piece(piece.text, piece.is_first, piece.ids);
    };
  });
}

}  // namespace tessera::tokenize
