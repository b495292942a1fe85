#include "model/param_values.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/hash.h"
#include "kernels/base/parallel.h"
#include "kernels/base/progress.h"

namespace tessera {
namespace {

std::uint64_t block_hash(UnitId unit, Index block, std::span<const float> values) {
  constexpr unsigned kBlockBits = 44;
  const std::uint64_t seed =
      (static_cast<std::uint64_t>(unit) << kBlockBits) + static_cast<std::uint64_t>(block);
  if (std::ssize(values) == kHashedElements) {
    return xxh3_64(std::as_bytes(values), seed);
  }
  std::vector<float> whole(static_cast<std::size_t>(kHashedElements));
  std::ranges::copy(values, whole.begin());
  return xxh3_64(std::as_bytes(std::span(whole)), seed);
}

}  // namespace

std::uint64_t hash_of_blocks(const ParamUnit& unit, UnitId id, Index begin,
                             std::span<const float> values) {
  TESSERA_REQUIRE(begin % kHashedElements == 0, "whole blocks");
  std::uint64_t sum = 0;
  const Index end = std::min(unit.count, begin + std::ssize(values));
  for (Index at = begin; at < end; at += kHashedElements) {
    const Index last = std::min(end, at + kHashedElements);
    sum += block_hash(
        id, at / kHashedElements,
        values.subspan(static_cast<std::size_t>(at - begin), static_cast<std::size_t>(last - at)));
  }
  return sum;
}

std::uint64_t content_hash(const ParamLayout& layout, const UnitValues& values, int threads) {
  constexpr Index kPiece = Index{1} << 19U;  // elements that a thread takes at a time
  struct Piece {
    UnitId unit;
    Index begin;
  };
  std::vector<Piece> pieces;
  for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
    for (Index begin = 0; begin < layout.unit(unit).count; begin += kPiece) {
      pieces.push_back({unit, begin});
    }
  }
  std::atomic<std::uint64_t> sum = 0;
  share_among_threads(std::ssize(pieces), threads, [&] {
    return [&, host = std::vector<float>()](Index i) mutable {
      const auto [unit, begin] = pieces[static_cast<std::size_t>(i)];
      const Index count = std::min(kPiece, layout.unit(unit).count - begin);
      host.assign(static_cast<std::size_t>(count), 0.0F);
      values(unit, begin, host);
      sum += hash_of_blocks(layout.unit(unit), unit, begin, host);
      progress().beats.fetch_add(1, std::memory_order_relaxed);
    };
  });
  return sum;
}

}  // namespace tessera
