#include "runtime/data/sequence_order.h"

#include <string>

#include "kernels/base/error.h"
#include "kernels/base/random.h"

namespace tessera {
namespace {

constexpr Index kMaxCount = Index{1} << 62U;
// of philox's streams, those of the data order: "data" in ASCII, far from the parameters'
constexpr std::uint64_t kDataStream = 0x64617461ULL << 32U;
// More rounds than the four that make a Feistel network a strong permutation of large sets: small
// sets need them.
constexpr std::uint64_t kFeistelRounds = 8;

// for products of two 62-bit numbers; not ISO C++, hence the mark that it is meant
__extension__ using Wide = unsigned __int128;

// round(position * part / whole), halves upwards, for part <= whole.
Index share_of(Index position, Index part, Index whole) {
  const auto w = static_cast<Wide>(whole);
  return static_cast<Index>((2 * static_cast<Wide>(position) * static_cast<Wide>(part) + w) /
                            (2 * w));
}

}  // namespace

Index evenly_spread(Index index, Index chosen, Index count) {
  TESSERA_REQUIRE(
      index >= 0 && index < chosen && chosen <= count && count <= kMaxCount,
      std::to_string(index) + " of " + std::to_string(chosen) + " of " + std::to_string(count));
  return static_cast<Index>((2 * static_cast<Wide>(index) + 1) * static_cast<Wide>(count) /
                            (2 * static_cast<Wide>(chosen)));
}

Index permuted(Index index, Index count, std::uint64_t key) {
  TESSERA_REQUIRE(index >= 0 && index < count && count <= kMaxCount,
                  std::to_string(index) + " of " + std::to_string(count));
  unsigned half_bits = 1;
  while ((Index{1} << (2 * half_bits)) < count) {
    ++half_bits;
  }
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  auto value = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = value >> half_bits;
    std::uint64_t right = value & mask;
    for (std::uint64_t round = 0; round < kFeistelRounds; ++round) {
      const std::uint64_t next = left ^ (philox(key, round, right)[0] & mask);
      left = right;
      right = next;
    }
    value = (left << half_bits) | right;
  } while (value >= static_cast<std::uint64_t>(count));
  return static_cast<Index>(value);
}

FileMixer::FileMixer(std::span<const Index> weights)
    : weights_(weights.begin(), weights.end()), rest_(weights.size()) {
  constexpr std::size_t kMaxFiles = std::size_t{1} << 20U;
  TESSERA_REQUIRE(!weights_.empty() && weights_.size() <= kMaxFiles, "no files, or too many");
  Index sum = 0;
  for (std::size_t f = weights_.size(); f-- > 0;) {
    TESSERA_REQUIRE(weights_[f] > 0 && weights_[f] < kMaxCount - sum, "weights out of range");
    sum += weights_[f];
    rest_[f] = sum;
  }
}

FileMixer::Place FileMixer::place(Index position) const {
  TESSERA_REQUIRE(position >= 0 && position < kMaxCount, "position out of range");
  // file f or one of the later ones? Each answer is one rounding, so counts never decrease.
  for (std::size_t f = 0; f + 1 < weights_.size(); ++f) {
    const Index before = share_of(position, weights_[f], rest_[f]);
    if (share_of(position + 1, weights_[f], rest_[f]) > before) {
      return {f, before};
    }
    position -= before;
  }
  return {weights_.size() - 1, position};
}

SequenceOrder::SequenceOrder(std::span<const Index> sequences, std::span<const Index> weights,
                             std::uint64_t seed)
    : sequences_(sequences.begin(), sequences.end()), mixer_(weights), seed_(seed) {
  TESSERA_REQUIRE(sequences.size() == weights.size(), "one weight a file");
  for (const Index count : sequences_) {
    TESSERA_REQUIRE(count > 0 && count <= kMaxCount, "a file without sequences");
  }
}

SequenceId SequenceOrder::at(Index position) const {
  const FileMixer::Place place = mixer_.place(position);
  const Index count = sequences_[place.file];
  const auto epoch = static_cast<std::uint64_t>(place.index / count);
  const std::array<std::uint32_t, 4> words = philox(seed_, kDataStream | place.file, epoch);
  const std::uint64_t key = (std::uint64_t{words[1]} << 32U) | words[0];
  return {place.file, permuted(place.index % count, count, key)};
}

}  // namespace tessera
