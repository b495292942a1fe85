// Whole documents in sequences of T tokens: which parts of which documents make up a sequence. A
// pure function of where a file's documents begin and of T, made once.
//
// A document of n tokens takes n - 1 places: its last token is only a target. Documents of more than
// T places are cut: pieces of T places are sequences of their own, and the rest is packed as a short
// document is. Short ones are packed by best fit, longest first: each into the sequence with the
// least room left that has enough (Johnson 1973, "Near-optimal bin packing algorithms", chapter 2;
// Ding et al. 2024, arXiv:2404.10830, section 3.2). Of equal ones the first in the file comes first,
// and of sequences with equal room the one that came to have it last.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/data/token_file.h"

namespace tessera {

/// Changes whenever the same file is packed in another way: part of a run's data hash.
inline constexpr int kPackingVersion = 1;

/// Part of a document: `tokens` inputs from token `begin` of the file on; their targets are the
/// tokens behind them.
struct DocumentPiece {
  Index begin;
  Index tokens;
  friend bool operator==(const DocumentPiece&, const DocumentPiece&) = default;
};

/// What packing made of a file.
struct PackingCounts {
  Index documents = 0;  // of two tokens or more; others have no target, and are left out
  Index cut = 0;        // of them, those of more than T + 1 tokens
  Index left_out = 0;   // documents of one token
  Index sequences = 0;
  Index tokens = 0;  // inputs that are of documents

  /// Places of the sequences that no document takes.
  [[nodiscard]] Index padding(Index sequence_length) const noexcept {
    return sequences * sequence_length - tokens;
  }
  /// Share of the places that documents take; 0 without sequences.
  [[nodiscard]] double fill(Index sequence_length) const noexcept;
  PackingCounts& operator+=(const PackingCounts& other) noexcept;
};

class DocumentPacking {
 public:
  /// Reads where documents begin; 16 bytes a document while it packs, 4 and
  /// as many a sequence then.
  /// Requires: sequence_length > 0. Throws ConfigError naming the file if it has more than 2^32 - 2
  /// documents, FormatError as TokenFile does.
  DocumentPacking(const TokenFile& file, Index sequence_length);

  [[nodiscard]] const PackingCounts& counts() const noexcept { return counts_; }
  [[nodiscard]] Index sequences() const noexcept { return counts_.sequences; }
  /// Replaces `out` by the pieces of sequence `sequence`, in the order of their places; reads a few
  /// bytes of `file`, the one that was packed. Requires: 0 <= sequence < sequences().
  void pieces(const TokenFile& file, Index sequence, std::vector<DocumentPiece>& out) const;

 private:
  using Number = std::uint32_t;  // of a document, or of a sequence

  // A document of which whole sequences are cut.
  struct LongDocument {
    Number document;
    Index first_sequence;
  };

  void pack(std::vector<Number> rests);

  Index sequence_length_;
  PackingCounts counts_;
  Index whole_sequences_ = 0;            // those that are cut out of long documents: the first ones
  std::vector<LongDocument> long_;       // ascending
  std::vector<Number> documents_;        // of the other sequences, one behind the other
  std::vector<Number> sequence_begins_;  // [other sequences + 1] in documents_
};

}  // namespace tessera
