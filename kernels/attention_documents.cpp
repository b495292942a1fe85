#include "kernels/attention_documents.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "kernels/attention_rows.h"
#include "kernels/base/error.h"
#include "kernels/base/round_up.h"

namespace tessera {
namespace {

constexpr Index kTokenBlock = 128;  // of the library
// Up to here every multiple of a block is a length of the grid; from here on each power of two has
// eight of them.
constexpr Index kFineLength = 2048;
constexpr Index kLengthsOfOctave = 8;
// Longer documents fill the device alone, and moving their rows would cost more than their calls.
constexpr Index kLongestGathered = 512;
// Beyond so many tokens a larger call gains nothing, and its rows take memory.
constexpr Index kCallTokens = 8192;
constexpr std::array<Index, 7> kDocumentsOfCalls = {1, 2, 4, 8, 16, 32, kMostDocumentsOfCall};
constexpr Index kEmptyShare = 4;  // of a call's places, one in so many may be empty
constexpr Index kRowUnit = 8;  // where calls begin: their rows of f32 too at multiples of 16 bytes
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

bool is_gathered_with_others(Index padded) {
  return padded <= kLongestGathered;
}

/// Adds calls to groups, of which the last is open.
class Groups {
 public:
  explicit Groups(Index most_rows) : most_rows_(most_rows) {}

  /// `documents` have begin and length; the call's further places are empty.
  void add(const DocumentCall& call, std::span<const PlacedDocument> documents, bool is_in_place) {
    const Index rows = round_up(call.rows(), kRowUnit);
    if (groups_.empty() || groups_.back().is_in_place != is_in_place ||
        groups_.back().rows + rows > most_rows_ ||
        std::ssize(groups_.back().documents) + call.documents > kMostDocumentsOfGroup) {
      groups_.emplace_back().is_in_place = is_in_place;
    }
    DocumentGroup& group = groups_.back();
    group.calls.push_back(call);
    for (Index place = 0; place < call.documents; ++place) {
      PlacedDocument document = place < std::ssize(documents)
                                    ? documents[static_cast<std::size_t>(place)]
                                    : PlacedDocument{};
      document.row = static_cast<std::int32_t>(group.rows + place * call.padded);
      document.padded = static_cast<std::int32_t>(call.padded);
      group.documents.push_back(document);
    }
    group.rows += rows;
  }
  std::vector<DocumentGroup> take() { return std::move(groups_); }

 private:
  Index most_rows_;
  std::vector<DocumentGroup> groups_;
};

}  // namespace

Index padded_document_length(Index tokens, Index sequence) {
  TESSERA_REQUIRE(tokens > 0 && tokens <= sequence, "a document of a sequence");
  return std::min(grid_length(tokens), sequence);
}

Index documents_of_call(Index waiting, Index padded) {
  TESSERA_REQUIRE(waiting > 0 && padded > 0, "documents that wait");
  Index best = 1;
  for (const Index documents : kDocumentsOfCalls) {
    const bool may_be = is_gathered_with_others(padded) && documents * padded <= kCallTokens &&
                        (documents - waiting) * kEmptyShare <= documents;
    best = may_be ? documents : best;
  }
  return best;
}

std::vector<DocumentCall> document_calls(const AttentionShape& shape) {
  std::vector<DocumentCall> calls;
  for (Index shorter = 0; shorter < shape.sequence;) {
    const Index padded = padded_document_length(shorter + 1, shape.sequence);
    const Index most = shape.sequence / (shorter + 1) * shape.batch;  // documents of a batch
    for (const Index documents : kDocumentsOfCalls) {
      const Index least = documents - documents / kEmptyShare;  // that wait for such a call
      if (least <= most && documents_of_call(least, padded) == documents) {
        calls.push_back({.padded = padded, .documents = documents});
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

std::vector<DocumentGroup> document_groups(const AttentionShape& shape,
                                           std::span<const std::int32_t> begins) {
  Groups groups(document_rows(shape));
  std::map<Index, std::vector<PlacedDocument>> waiting;  // by padded length
  for (std::size_t i = 0; i + 1 < begins.size(); ++i) {
    const Index length = begins[i + 1] - begins[i];
    const Index padded = padded_document_length(length, shape.sequence);
    const PlacedDocument document = {
        .begin = begins[i], .length = static_cast<std::int32_t>(length), .row = 0, .padded = 0};
    if (!is_gathered_with_others(padded) && begins[i] + padded <= begins.back()) {
      groups.add({.padded = padded, .documents = 1}, {&document, 1}, true);
    } else {
      waiting[padded].push_back(document);
    }
  }
  for (const auto& [padded, documents] : waiting) {
    std::span<const PlacedDocument> left = documents;
    while (!left.empty()) {
      const Index places = documents_of_call(std::ssize(left), padded);
      const auto count = std::min(left.size(), static_cast<std::size_t>(places));
      groups.add({.padded = padded, .documents = places}, left.first(count), false);
      left = left.subspan(count);
    }
  }
  return groups.take();
}

Index document_rows(const AttentionShape& shape) {
  Index rows = 0;
  for (const DocumentCall& call : document_calls(shape)) {
    rows = std::max(rows, call.rows());
  }
  return round_up(rows, kRowUnit);
}

DocumentRoom document_room(const AttentionShape& shape) {
  const Index rows = document_rows(shape);
  const Index qk_width = (shape.query_heads + shape.kv_heads) * shape.head_dim;
  const Index out_width = shape.query_heads * shape.head_dim;
  std::size_t next = 0;
  const auto take = [&](Index width, Index bytes) {
    const std::size_t begin = next;
    next += static_cast<std::size_t>(rows * width * bytes);
    next = round_up(next, kRoomUnit);
    return begin;
  };
  DocumentRoom room{};
  room.qk = take(qk_width, kBFloat16Bytes);
  room.fused = take(fused_width(shape), kBFloat16Bytes);
  room.out = take(out_width, kBFloat16Bytes);
  room.lse = take(shape.query_heads, kFloatBytes);
  room.d_out = take(out_width, kBFloat16Bytes);
  room.d_fused = take(fused_width(shape), kBFloat16Bytes);
  room.library = next;
  return room;
}

}  // namespace tessera
