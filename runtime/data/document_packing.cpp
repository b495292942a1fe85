#include "runtime/data/document_packing.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/quantity.h"

namespace tessera {
namespace {

constexpr Index kStartsAtOnce = 1024;

// Calls take(document, tokens) for every document of a file, in order.
template <typename Take>
void for_each_document(const TokenFile& file, const Take& take) {
  std::array<std::uint64_t, kStartsAtOnce + 1> starts = {};
  const Index documents = file.document_count();
  for (Index first = 0; first < documents; first += kStartsAtOnce) {
    const Index count = std::min(kStartsAtOnce, documents - first);
    const Index known = std::min(count + 1, documents - first);
    file.read_document_starts(first, std::span(starts).first(static_cast<std::size_t>(known)));
    if (known == count) {
      starts[static_cast<std::size_t>(count)] = static_cast<std::uint64_t>(file.token_count());
    }
    for (Index i = 0; i < count; ++i) {
      const auto begin = static_cast<Index>(starts[static_cast<std::size_t>(i)]);
      const auto end = static_cast<Index>(starts[static_cast<std::size_t>(i) + 1]);
      take(first + i, end - begin);
    }
  }
}

// Sequences by the room that they have left, to find the least that is enough in constant time: a
// tree of bits over the numbers 0 .. most, 64 children a node, and behind each number a list of
// sequences, the last one first.
class RoomIndex {
 public:
  using Number = std::uint32_t;
  static constexpr Number kNone = std::numeric_limits<Number>::max();

  explicit RoomIndex(Index most) : first_(static_cast<std::size_t>(most) + 1, kNone) {
    std::size_t nodes = first_.size();
    do {
      nodes = (nodes + kChildren - 1) / kChildren;
      levels_.emplace_back(nodes, 0);
    } while (nodes > 1);
  }

  void add(Index room, Number sequence) {
    const auto at = static_cast<std::size_t>(room);
    next_.resize(std::max(next_.size(), static_cast<std::size_t>(sequence) + 1), kNone);
    next_[sequence] = std::exchange(first_[at], sequence);
    std::size_t child = at;
    for (std::vector<std::uint64_t>& level : levels_) {
      level[child / kChildren] |= std::uint64_t{1} << child % kChildren;
      child /= kChildren;
    }
  }

  // The least room of `least` or more that a sequence has; kNoRoom if none has.
  static constexpr Index kNoRoom = -1;
  [[nodiscard]] Index find(Index least) const {
    auto from = static_cast<std::size_t>(least);
    for (std::size_t l = 0; l < levels_.size(); ++l) {
      const std::size_t node = from / kChildren;
      if (node >= levels_[l].size()) {
        return kNoRoom;
      }
      const std::uint64_t set = levels_[l][node] >> from % kChildren;
      if (set != 0) {
        std::size_t found = from + static_cast<std::size_t>(std::countr_zero(set));
        while (l > 0) {
          --l;
          found = found * kChildren + static_cast<std::size_t>(std::countr_zero(levels_[l][found]));
        }
        return static_cast<Index>(found);
      }
      from = node + 1;
    }
    return kNoRoom;
  }

  // Takes the last sequence that was added with this room. Requires: there is one.
  Number take(Index room) {
    const auto at = static_cast<std::size_t>(room);
    const Number sequence = first_[at];
    first_[at] = next_[sequence];
    std::size_t child = at;
    bool is_empty = first_[at] == kNone;
    for (std::vector<std::uint64_t>& level : levels_) {
      if (!is_empty) {
        break;
      }
      std::uint64_t& node = level[child / kChildren];
      node &= ~(std::uint64_t{1} << child % kChildren);
      is_empty = node == 0;
      child /= kChildren;
    }
    return sequence;
  }

 private:
  static constexpr std::size_t kChildren = 64;

  std::vector<Number> first_;                       // by room
  std::vector<Number> next_;                        // by sequence
  std::vector<std::vector<std::uint64_t>> levels_;  // a bit a child that is not empty
};

}  // namespace

double PackingCounts::fill(Index sequence_length) const noexcept {
  const Index places = sequences * sequence_length;
  return places == 0 ? 0 : static_cast<double>(tokens) / static_cast<double>(places);
}

PackingCounts& PackingCounts::operator+=(const PackingCounts& other) noexcept {
  documents += other.documents;
  cut += other.cut;
  left_out += other.left_out;
  sequences += other.sequences;
  tokens += other.tokens;
  return *this;
}

DocumentPacking::DocumentPacking(const TokenFile& file, Index sequence_length)
    : sequence_length_(sequence_length) {
  TESSERA_REQUIRE(sequence_length > 0, "a sequence has tokens");
  if (file.document_count() >= static_cast<Index>(RoomIndex::kNone)) {
    throw ConfigError(fmt::format("{} has {} documents, and --documents separate packs at most {}: "
                                  "cut the text into several files",
                                  file.path().string(), grouped(file.document_count()),
                                  grouped(static_cast<Index>(RoomIndex::kNone) - 1)),
                      TESSERA_HERE);
  }
  std::vector<Number> rests(static_cast<std::size_t>(file.document_count()));
  for_each_document(file, [&](Index document, Index tokens) {
    const Index places = tokens - 1;
    counts_.documents += places > 0 ? 1 : 0;
    counts_.left_out += places > 0 ? 0 : 1;
    counts_.cut += places > sequence_length ? 1 : 0;
    counts_.tokens += places;
    if (places >= sequence_length) {
      long_.push_back(
          {.document = static_cast<Number>(document), .first_sequence = whole_sequences_});
      whole_sequences_ += places / sequence_length;
    }
    rests[static_cast<std::size_t>(document)] = static_cast<Number>(places % sequence_length);
  });
  pack(std::move(rests));
  counts_.sequences = whole_sequences_ + std::ssize(sequence_begins_) - 1;
}

// `rests`: by document, the places that are left when whole sequences have been cut out; 0: none.
void DocumentPacking::pack(std::vector<Number> rests) {
  // the order of a counting sort, the longest first
  std::vector<Index> begins(static_cast<std::size_t>(sequence_length_) + 1, 0);
  for (const Number rest : rests) {
    ++begins[static_cast<std::size_t>(rest)];
  }
  Index packed = 0;
  for (std::size_t rest = begins.size() - 1; rest > 0; --rest) {
    packed += std::exchange(begins[rest], packed);
  }
  documents_.resize(static_cast<std::size_t>(packed));
  for (std::size_t document = 0; document < rests.size(); ++document) {
    if (rests[document] > 0) {
      documents_[static_cast<std::size_t>(begins[rests[document]]++)] =
          static_cast<Number>(document);
    }
  }
  RoomIndex rooms(sequence_length_);
  std::vector<Number> counts;  // documents of each sequence
  // from here on `rests` says the sequence of a document
  for (const Number document : documents_) {
    const auto tokens = static_cast<Index>(rests[document]);
    const Index room = rooms.find(tokens);
    Number sequence = 0;
    if (room == RoomIndex::kNoRoom) {
      sequence = static_cast<Number>(counts.size());
      counts.push_back(0);
      rooms.add(sequence_length_ - tokens, sequence);
    } else {
      sequence = rooms.take(room);
      rooms.add(room - tokens, sequence);
    }
    ++counts[sequence];
    rests[document] = sequence;
  }
  sequence_begins_.assign(counts.size() + 1, 0);
  for (std::size_t s = 0; s < counts.size(); ++s) {
    sequence_begins_[s + 1] = sequence_begins_[s] + counts[s];
  }
  // by sequence, the longest documents first; `counts` says where the next one goes
  std::copy(sequence_begins_.begin(), sequence_begins_.end() - 1, counts.begin());
  std::vector<Number> by_sequence(documents_.size());
  for (const Number document : documents_) {
    by_sequence[counts[rests[document]]++] = document;
  }
  documents_ = std::move(by_sequence);
}

void DocumentPacking::pieces(const TokenFile& file, Index sequence,
                             std::vector<DocumentPiece>& out) const {
  TESSERA_REQUIRE(sequence >= 0 && sequence < sequences(), "a sequence of the file");
  out.clear();
  std::array<std::uint64_t, 2> range = {};
  const auto range_of = [&](Number document) {
    const bool is_last = static_cast<Index>(document) + 1 == file.document_count();
    range[1] = static_cast<std::uint64_t>(file.token_count());
    file.read_document_starts(document, std::span(range).first(is_last ? 1 : 2));
    return std::pair(static_cast<Index>(range[0]), static_cast<Index>(range[1] - range[0] - 1));
  };
  if (sequence < whole_sequences_) {
    const LongDocument& whole = *std::prev(std::upper_bound(
        long_.begin(), long_.end(), sequence,
        [](Index s, const LongDocument& document) { return s < document.first_sequence; }));
    const Index begin = range_of(whole.document).first;
    out.push_back({.begin = begin + (sequence - whole.first_sequence) * sequence_length_,
                   .tokens = sequence_length_});
    return;
  }
  const auto at = static_cast<std::size_t>(sequence - whole_sequences_);
  for (Number i = sequence_begins_[at]; i < sequence_begins_[at + 1]; ++i) {
    const auto [begin, places] = range_of(documents_[i]);
    const Index rest = places % sequence_length_;
    out.push_back({.begin = begin + places - rest, .tokens = rest});
  }
}

}  // namespace tessera
