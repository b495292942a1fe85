// Which sequence of which file stands at a position of the data order: pure functions of (seed,
// position), in constant memory. No ranks, no files, no state.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device/stream.h"

namespace tessera {

/// Element `index` of a pseudo-random permutation of 0 .. count-1 chosen by `key`: a Feistel
/// network over the next power of four, walked along its cycle until the result is below count
/// (Black and Rogaway 2002, "Ciphers with arbitrary finite domains"). At most four rounds of it on
/// average. Requires: 0 <= index < count <= 2^62.
[[nodiscard]] Index permuted(Index index, Index count, std::uint64_t key);

/// Where the middle of part `index` lies if 0 .. count-1 is cut into `chosen` equal parts:
/// floor((2 index + 1) count / (2 chosen)). Ascends, and is `index` itself where all are chosen.
/// Requires: 0 <= index < chosen <= count <= 2^62.
[[nodiscard]] Index evenly_spread(Index index, Index chosen, Index count);

/// Deals positions 0, 1, 2, ... out to files in proportion to their weights. Of the first n
/// positions file f has n * weight[f] / sum of weights, but for rounding (less than one per file
/// before it, and exactly at multiples of the sum), so files are mixed as evenly as can be.
class FileMixer {
 public:
  struct Place {
    std::size_t file;
    Index index;  // positions of this file before this one
  };

  /// Requires: 1 to 2^20 weights, each > 0, their sum below 2^62.
  explicit FileMixer(std::span<const Index> weights);
  /// Requires: 0 <= position < 2^62.
  [[nodiscard]] Place place(Index position) const;

 private:
  std::vector<Index> weights_;
  std::vector<Index> rest_;  // rest_[f] = weights_[f] + weights_[f+1] + ...
};

/// One sequence of the data order.
struct SequenceId {
  std::size_t file;
  Index sequence;  // of the file, in file order
  friend bool operator==(const SequenceId&, const SequenceId&) = default;
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 behind <=> for a pointer
  // clang-tidy 14 takes the 0 that <=> is compared with for a pointer
  // NOLINTNEXTLINE(modernize-use-nullptr,readability-implicit-bool-conversion)
  friend auto operator<=>(const SequenceId&, const SequenceId&) = default;
};

/// The data order of several files: FileMixer chooses the file; each file then runs through its own
/// epochs, each with a permutation of its own.
class SequenceOrder {
 public:
  /// sequences[f] > 0: sequences of file f. weights as for FileMixer, one a file.
  SequenceOrder(std::span<const Index> sequences, std::span<const Index> weights,
                std::uint64_t seed);
  [[nodiscard]] SequenceId at(Index position) const;

 private:
  std::vector<Index> sequences_;
  FileMixer mixer_;
  std::uint64_t seed_;
};

}  // namespace tessera
