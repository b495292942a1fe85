// Byte pair encoding: the ids of one word. A word begins as its bytes; the neighbouring pair of lowest
// rank, the leftmost of equals, is merged until no pair has a rank (arXiv:1508.07909, section 3.2).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/types.h"

namespace tessera {

/// Ids of words that came before. A word takes one place, which its hash gives; a later one of the
/// same place replaces it. Not for several threads.
class WordCache {
 public:
  WordCache();
  struct Slot {
    static constexpr std::size_t kWords = 3;
    static constexpr std::size_t kMostBytes = kWords * sizeof(std::uint64_t) - 1;
    static constexpr std::size_t kMostIds = 9;
    std::array<std::uint64_t, kWords> key;  // the bytes, zeros, and their count in the last byte
    std::uint32_t id_count;
    std::array<std::uint32_t, kMostIds> ids;
  };
  static_assert(sizeof(Slot) == 64, "a line of the processor's cache");
  using Key = std::array<std::uint64_t, Slot::kWords>;

  /// `end`: up to there bytes behind the word may be read. Requires: word.size() <= Slot::kMostBytes.
  [[nodiscard]] static Key key_of(std::string_view word, const char* end) noexcept;
  [[nodiscard]] Slot& slot_of(const Key& key) noexcept;

 private:
  std::vector<Slot> slots_;
};

class BytePairs {
 public:
  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;

  struct Pair {
    std::uint32_t left;
    std::uint32_t right;
    std::uint32_t merged;
    std::uint32_t rank;
  };
  /// What one thread needs beside the tables.
  struct Scratch {
    WordCache cache;
    std::vector<std::uint32_t> ids;
    std::vector<std::uint32_t> ranks;
    std::vector<std::uint32_t> merged;
    std::vector<std::uint32_t> previous;
    std::vector<std::uint32_t> next;
    std::vector<std::uint64_t> queue;
  };

  /// `byte_ids`: id of each byte; kNone: it has none. Of equal pairs the last counts.
  /// Requires: ranks and ids below kNone.
  BytePairs(const std::array<std::uint32_t, 256>& byte_ids, const std::vector<Pair>& pairs);

  /// Appends the ids of `word`, whose bytes must all have one. Takes time in proportion to
  /// n log n for n bytes.
  void encode(std::string_view word, Scratch& scratch, std::vector<std::uint32_t>& ids) const;

 private:
  struct Merge {
    std::uint32_t rank;
    std::uint32_t merged;
  };
  struct Entry {
    std::uint64_t pair;
    Merge merge;
  };
  static constexpr std::uint64_t kNoPair = ~std::uint64_t{0};

  [[nodiscard]] std::size_t place_of(std::uint64_t pair) const noexcept;
  [[nodiscard]] Merge find(std::uint32_t left, std::uint32_t right) const noexcept;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  std::array<std::uint32_t, 256> byte_ids_;
  std::vector<Entry> entries_;
  unsigned shift_ = 0;
};

}  // namespace tessera
