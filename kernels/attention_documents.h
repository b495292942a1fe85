// How the CUDA library's attention takes documents (DocumentBounds). Long ones are calls of their
// own on the batch's rows as they are, each padded by the rows that follow it; short ones are
// gathered into dense batches of equal padded lengths. Lengths and numbers of documents are of a
// fixed grid, so that all graphs are known at the start. What is added to a document stands behind
// it, where its queries do not see it. Pure functions, known in builds without CUDA too. For
// kernels/attention.cpp and kernels/cuda/ only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"

namespace tessera {

/// One call: a dense batch of `documents` sequences of `padded` tokens.
struct DocumentCall {
  Index padded;
  Index documents;
  [[nodiscard]] Index rows() const noexcept { return padded * documents; }
  friend bool operator==(const DocumentCall&, const DocumentCall&) = default;
};

/// The most documents of a call, and of a group of calls.
inline constexpr Index kMostDocumentsOfCall = 64;
inline constexpr Index kMostDocumentsOfGroup = 128;

/// The length that a document of `tokens` is padded to: a multiple of cuDNN's block of tokens, from
/// 2,048 on an eighth to a sixteenth apart, and the sequence's at most.
/// Requires: 0 < tokens <= sequence.
[[nodiscard]] Index padded_document_length(Index tokens, Index sequence);

/// How many documents of that padded length the next call takes, where `waiting` are left: 1 above
/// 512 tokens, else a power of two up to 64. It may be more than wait, by a third of them at most:
/// one call with an empty place is faster than two.
/// Requires: waiting > 0, padded > 0.
[[nodiscard]] Index documents_of_call(Index waiting, Index padded);

/// Every call that a batch of this shape may lead to, the shortest documents first.
[[nodiscard]] std::vector<DocumentCall> document_calls(const AttentionShape& shape);

/// The shape of a call.
[[nodiscard]] AttentionShape shape_of_call(const AttentionShape& shape, const DocumentCall& call);

/// A document of a group of calls; an empty place has no tokens.
struct PlacedDocument {
  std::int32_t begin;   // first token in the batch
  std::int32_t length;  // tokens
  std::int32_t row;     // first among the group's rows
  std::int32_t padded;  // rows
};

/// Calls whose rows are in the workspace at the same time: one kernel moves them all.
struct DocumentGroup {
  /// The calls read and write the batch's rows, and only what must not be seen behind a document is
  /// in the workspace. Else each row is gathered.
  bool is_in_place = false;
  std::vector<DocumentCall> calls;
  std::vector<PlacedDocument> documents;  // of the calls, one after the other
  Index rows = 0;                         // at most document_rows
};

/// The calls for a batch's documents, in the order in which they must run: a call in place also
/// writes to rows behind its document, which later ones write again.
///
///   begins  [documents + 1]  DocumentBounds::host_begins
[[nodiscard]] std::vector<DocumentGroup> document_groups(const AttentionShape& shape,
                                                         std::span<const std::int32_t> begins);

/// The most rows of a group.
[[nodiscard]] Index document_rows(const AttentionShape& shape);

/// Where the rows of a group are: bytes from the begin of the workspace. M is document_rows.
struct DocumentRoom {
  std::size_t qk;       // bf16 [M, (Hq + Hkv) * D]: q and k with rotary embedding
  std::size_t fused;    // bf16 [M, (Hq + 2 Hkv) * D]: v, and q and k where they are in such rows
  std::size_t out;      // bf16 [M, Hq * D]
  std::size_t lse;      // f32 [documents, Hq, padded] of each call
  std::size_t d_out;    // bf16 [M, Hq * D]
  std::size_t d_fused;  // bf16 [M, (Hq + 2 Hkv) * D]
  std::size_t library;  // what is left: that of the call as a dense batch
};
[[nodiscard]] DocumentRoom document_room(const AttentionShape& shape);

}  // namespace tessera
