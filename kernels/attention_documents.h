// How the CUDA library's attention takes documents (DocumentBounds): gathered into dense batches of
// equal padded lengths, one call for each. Lengths and numbers of documents are of a fixed grid, so
// that all graphs are known at the start; what is added to a document is zeros behind it, which its
// queries do not see. A pure function of the shape, known in builds without CUDA too. For
// kernels/attention.cpp and kernels/cuda/ only.
#pragma once

#include <cstddef>
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

/// The most documents of a call.
inline constexpr Index kMostDocumentsOfCall = 64;

/// The length that a document of `tokens` is padded to: a multiple of cuDNN's block of tokens, above
/// 1,024 an eighth to a quarter apart, and the sequence's at most.
/// Requires: 0 < tokens <= sequence.
[[nodiscard]] Index padded_document_length(Index tokens, Index sequence);

/// How many of `waiting` documents of that padded length the next call takes: 64, 16, 4 or 1.
/// Requires: waiting > 0, padded > 0.
[[nodiscard]] Index documents_of_call(Index waiting, Index padded);

/// Every call that a batch of this shape may lead to, the shortest documents first.
[[nodiscard]] std::vector<DocumentCall> document_calls(const AttentionShape& shape);

/// The shape of a call.
[[nodiscard]] AttentionShape shape_of_call(const AttentionShape& shape, const DocumentCall& call);

/// Where the gathered rows of a call are: bytes from the begin of the workspace. M rows, the most of
/// any call.
struct DocumentRoom {
  std::size_t fused;    // bf16 [M, (Hq + 2 Hkv) * D]: q, k with rotary embedding, v
  std::size_t out;      // bf16 [M, Hq * D]
  std::size_t lse;      // f32 [documents, Hq, padded]
  std::size_t d_out;    // bf16 [M, Hq * D]
  std::size_t d_fused;  // bf16 [M, (Hq + 2 Hkv) * D]
  std::size_t library;  // what is left: that of the call as a dense batch
};
[[nodiscard]] DocumentRoom document_room(const AttentionShape& shape);

}  // namespace tessera
