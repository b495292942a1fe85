#include "kernels/attention_documents.h"

#include <algorithm>
#include <array>

#include "kernels/attention_rows.h"
#include "kernels/base/error.h"
#include "kernels/base/round_up.h"

namespace tessera {
namespace {

constexpr Index kTokenBlock = 128;  // of the library
// Up to here every multiple of a block is a length of the grid; from here on each power of two has
// four of them.
constexpr Index kFineLength = 1024;
constexpr Index kLengthsOfOctave = 4;
// Beyond so many tokens a larger call gains nothing, and its rows take memory.
constexpr Index kCallTokens = 8192;
constexpr std::array<Index, 4> kDocumentsOfCalls = {kMostDocumentsOfCall, 16, 4, 1};
constexpr Index kBFloat16Bytes = 2;
constexpr Index kFloatBytes = 4;
constexpr std::size_t kRoomUnit = 256;  // where parts of a workspace begin

// The next larger length of the grid from `tokens` on.
Index grid_length(Index tokens) {
  Index step = kTokenBlock;
  for (Index octave = kFineLength; tokens > octave; octave *= 2) {
    step = octave / kLengthsOfOctave;
  }
  return round_up(tokens, step);
}

Index most_rows(const AttentionShape& shape) {
  Index rows = 0;
  for (const DocumentCall& call : document_calls(shape)) {
    rows = std::max(rows, call.rows());
  }
  return rows;
}

}  // namespace

Index padded_document_length(Index tokens, Index sequence) {
  TESSERA_REQUIRE(tokens > 0 && tokens <= sequence, "a document of a sequence");
  return std::min(grid_length(tokens), sequence);
}

Index documents_of_call(Index waiting, Index padded) {
  TESSERA_REQUIRE(waiting > 0 && padded > 0, "documents that wait");
  return *std::find_if(kDocumentsOfCalls.begin(), kDocumentsOfCalls.end(), [&](Index documents) {
    return documents == 1 || (documents <= waiting && documents * padded <= kCallTokens);
  });
}

std::vector<DocumentCall> document_calls(const AttentionShape& shape) {
  std::vector<DocumentCall> calls;
  for (Index shorter = 0; shorter < shape.sequence;) {
    const Index padded = padded_document_length(shorter + 1, shape.sequence);
    const Index most = shape.sequence / (shorter + 1) * shape.batch;  // documents of a batch
    // NOLINTNEXTLINE(modernize-loop-convert): clang 14 cannot read libstdc++ 12's reversed views
    for (auto documents = kDocumentsOfCalls.rbegin(); documents != kDocumentsOfCalls.rend();
         ++documents) {
      if (*documents <= most && documents_of_call(*documents, padded) == *documents) {
        calls.push_back({.padded = padded, .documents = *documents});
      }
    }
    shorter = padded;
  }
  return calls;
}

AttentionShape shape_of_call(const AttentionShape& shape, const DocumentCall& call) {
  AttentionShape dense = shape;
  dense.batch = call.documents;
  dense.sequence = call.padded;
  return dense;
}

DocumentRoom document_room(const AttentionShape& shape) {
  const Index rows = most_rows(shape);
  const Index out_width = shape.query_heads * shape.head_dim;
  std::size_t next = 0;
  const auto take = [&](Index width, Index bytes) {
    const std::size_t begin = next;
    next += static_cast<std::size_t>(rows * width * bytes);
    next = round_up(next, kRoomUnit);
    return begin;
  };
  DocumentRoom room{};
  room.fused = take(fused_width(shape), kBFloat16Bytes);
  room.out = take(out_width, kBFloat16Bytes);
  room.lse = take(shape.query_heads, kFloatBytes);
  room.d_out = take(out_width, kBFloat16Bytes);
  room.d_fused = take(fused_width(shape), kBFloat16Bytes);
  room.library = next;
  return room;
}

}  // namespace tessera
