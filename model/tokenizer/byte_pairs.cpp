#include "model/tokenizer/byte_pairs.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

namespace tessera {
namespace {

constexpr unsigned kCacheBits = 15;                  // slots: 2 MiB, which second-level caches hold
constexpr std::uint64_t kMix = 0x9E3779B97F4A7C15U;  // 2^64 divided by the golden ratio
constexpr unsigned kWordBits = 64;
// Above it a queue finds the next pair faster than looking at all of them.
constexpr std::size_t kShortWord = 64;

}  // namespace

WordCache::WordCache() : slots_(std::size_t{1} << kCacheBits) {}

WordCache::Key WordCache::key_of(std::string_view word, const char* end) noexcept {
  constexpr std::size_t kBytes = sizeof(std::uint64_t);
  Key key = {};
  if (static_cast<std::size_t>(end - word.data()) >= sizeof(key)) {
    std::memcpy(key.data(), word.data(), sizeof(key));
    for (std::size_t i = 0; i < Slot::kWords; ++i) {
      const std::size_t begin = i * kBytes;
      const std::size_t used = word.size() > begin ? std::min(word.size() - begin, kBytes) : 0;
      const std::uint64_t mask =
          used == kBytes ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * used)) - 1;
      key[i] &= mask;
    }
  } else {
    std::memcpy(key.data(), word.data(), word.size());
  }
  key.back() |= static_cast<std::uint64_t>(word.size()) << (kWordBits - 8);
  return key;
}

WordCache::Slot& WordCache::slot_of(const Key& key) noexcept {
  std::uint64_t hash = key[0] * kMix;
  hash = (hash ^ (hash >> 32U) ^ key[1]) * kMix;
  hash = (hash ^ (hash >> 32U) ^ key[2]) * kMix;
  return slots_[hash >> (kWordBits - kCacheBits)];
}

BytePairs::BytePairs(const std::array<std::uint32_t, 256>& byte_ids, const std::vector<Pair>& pairs)
    : byte_ids_(byte_ids) {
  const unsigned bits = std::bit_width(std::max<std::size_t>(2 * pairs.size(), 2));
  shift_ = kWordBits - bits;
  entries_.assign(std::size_t{1} << bits, Entry{kNoPair, {kNone, kNone}});
  for (const Pair& pair : pairs) {
    const std::uint64_t key = (std::uint64_t{pair.left} << 32U) | pair.right;
    std::size_t place = place_of(key);
    while (entries_[place].pair != kNoPair && entries_[place].pair != key) {
      place = (place + 1) & (entries_.size() - 1);
    }
    entries_[place] = {key, {pair.rank, pair.merged}};
  }
}

std::size_t BytePairs::place_of(std::uint64_t pair) const noexcept {
  return ((pair ^ (pair >> 29U)) * kMix) >> shift_;
}

BytePairs::Merge BytePairs::find(std::uint32_t left, std::uint32_t right) const noexcept {
  const std::uint64_t key = (std::uint64_t{left} << 32U) | right;
  std::size_t place = place_of(key);
  while (entries_[place].pair != key) {
    if (entries_[place].pair == kNoPair) {
      return {kNone, kNone};
    }
    place = (place + 1) & (entries_.size() - 1);
  }
  return entries_[place].merge;
}

void BytePairs::encode(std::string_view word, Scratch& scratch,
                       std::vector<std::uint32_t>& ids) const {
  const std::size_t size = word.size();
  if (size == 0) {
    return;
  }
  std::vector<std::uint32_t>& parts = scratch.ids;
  parts.resize(size);
  scratch.ranks.resize(size);
  scratch.merged.resize(size);
  for (std::size_t i = 0; i < size; ++i) {
    parts[i] = byte_ids_[static_cast<unsigned char>(word[i])];
  }
  for (std::size_t i = 0; i + 1 < size; ++i) {
    const Merge merge = find(parts[i], parts[i + 1]);
    scratch.ranks[i] = merge.rank;
    scratch.merged[i] = merge.merged;
  }
  scratch.ranks[size - 1] = kNone;
  if (size <= kShortWord) {
    merge_short(scratch);
  } else {
    merge_long(scratch);
  }
  ids.insert(ids.end(), parts.begin(), parts.end());
}

// Looks at the ranks of all pairs for each merge. Leaves the ids in scratch.ids.
void BytePairs::merge_short(Scratch& scratch) const {
  std::uint32_t* const ids = scratch.ids.data();
  std::uint32_t* const ranks = scratch.ranks.data();
  std::uint32_t* const merged = scratch.merged.data();
  std::size_t size = scratch.ids.size();
  while (size > 1) {
    std::size_t at = 0;
    for (std::size_t i = 1; i + 1 < size; ++i) {
      at = ranks[i] < ranks[at] ? i : at;
    }
    if (ranks[at] == kNone) {
      break;
    }
    ids[at] = merged[at];
    const std::size_t behind = size - at - 2;
    std::memmove(ids + at + 1, ids + at + 2, behind * sizeof(*ids));
    std::memmove(ranks + at + 1, ranks + at + 2, behind * sizeof(*ranks));
    std::memmove(merged + at + 1, merged + at + 2, behind * sizeof(*merged));
    --size;
    const auto look_up = [&](std::size_t left) {
      const Merge merge = find(ids[left], ids[left + 1]);
      ranks[left] = merge.rank;
      merged[left] = merge.merged;
    };
    if (at + 1 < size) {
      look_up(at);
    } else {
      ranks[at] = kNone;
    }
    if (at > 0) {
      look_up(at - 1);
    }
  }
  scratch.ids.resize(size);
}

// The parts as a linked list, the pairs in a queue by rank and place. An entry whose pair has changed
// since has another rank than its place: the text of a pair only grows. Leaves the ids in scratch.ids.
void BytePairs::merge_long(Scratch& scratch) const {
  constexpr unsigned kRankBits = 32;
  std::vector<std::uint32_t>& ids = scratch.ids;
  std::vector<std::uint32_t>& ranks = scratch.ranks;
  const auto size = static_cast<std::uint32_t>(ids.size());
  scratch.previous.resize(size);
  scratch.next.resize(size);
  scratch.queue.clear();
  for (std::uint32_t i = 0; i < size; ++i) {
    scratch.previous[i] = i == 0 ? kNone : i - 1;
    scratch.next[i] = i + 1 == size ? kNone : i + 1;
    if (ranks[i] != kNone) {
      scratch.queue.push_back((std::uint64_t{ranks[i]} << kRankBits) | i);
    }
  }
  std::make_heap(scratch.queue.begin(), scratch.queue.end(), std::greater<>());
  const auto look_up = [&](std::uint32_t left) {
    const Merge merge = find(ids[left], ids[scratch.next[left]]);
    ranks[left] = merge.rank;
    scratch.merged[left] = merge.merged;
    if (merge.rank != kNone) {
      scratch.queue.push_back((std::uint64_t{merge.rank} << kRankBits) | left);
      std::push_heap(scratch.queue.begin(), scratch.queue.end(), std::greater<>());
    }
  };
  while (!scratch.queue.empty()) {
    std::pop_heap(scratch.queue.begin(), scratch.queue.end(), std::greater<>());
    const std::uint64_t entry = scratch.queue.back();
    scratch.queue.pop_back();
    const auto at = static_cast<std::uint32_t>(entry);
    if (ranks[at] != entry >> kRankBits) {
      continue;
    }
    ids[at] = scratch.merged[at];
    const std::uint32_t gone = scratch.next[at];
    const std::uint32_t behind = scratch.next[gone];
    ranks[gone] = kNone;
    scratch.next[at] = behind;
    if (behind != kNone) {
      scratch.previous[behind] = at;
      look_up(at);
    } else {
      ranks[at] = kNone;
    }
    if (scratch.previous[at] != kNone) {
      look_up(scratch.previous[at]);
    }
  }
  std::size_t count = 0;
  for (std::uint32_t i = 0; i != kNone; i = scratch.next[i]) {
    ids[count++] = ids[i];
  }
  ids.resize(count);
}

}  // namespace tessera
