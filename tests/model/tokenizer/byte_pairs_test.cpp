// Byte pair encoding beside the definition done step by step.
#define BOOST_TEST_MODULE byte_pairs
#include "model/tokenizer/byte_pairs.h"

#include <algorithm>
#include <map>
#include <random>

#include <boost/test/unit_test.hpp>

namespace tessera {
namespace {

using Ids = std::vector<std::uint32_t>;
using Rules =
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::pair<std::uint32_t, std::uint32_t>>;

std::array<std::uint32_t, 256> own_ids() {
  std::array<std::uint32_t, 256> ids = {};
  for (std::uint32_t i = 0; i < ids.size(); ++i) {
    ids.at(i) = i;
  }
  return ids;
}

Ids by_definition(std::string_view word, const std::vector<BytePairs::Pair>& pairs) {
  Rules rules;
  for (const BytePairs::Pair& pair : pairs) {
    rules[{pair.left, pair.right}] = {pair.rank, pair.merged};
  }
  Ids ids;
  for (const char c : word) {
    ids.push_back(static_cast<unsigned char>(c));
  }
  for (;;) {
    std::size_t best = ids.size();
    std::uint32_t rank = BytePairs::kNone;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto rule = rules.find({ids[i], ids[i + 1]});
      if (rule != rules.end() && rule->second.first < rank) {
        best = i;
        rank = rule->second.first;
      }
    }
    if (best == ids.size()) {
      return ids;
    }
    ids[best] = rules[{ids[best], ids[best + 1]}].second;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

// Merges of random neighbours, so that many overlap.
std::vector<BytePairs::Pair> random_pairs(std::mt19937& random, std::uint32_t letters,
                                          std::uint32_t count) {
  std::vector<BytePairs::Pair> pairs;
  std::vector<std::uint32_t> ids;
  for (std::uint32_t i = 0; i < letters; ++i) {
    ids.push_back('a' + i);
  }
  Rules known;
  while (pairs.size() < count) {
    const std::uint32_t left = ids[random() % ids.size()];
    const std::uint32_t right = ids[random() % ids.size()];
    const auto id = static_cast<std::uint32_t>(256 + pairs.size());
    if (known.emplace(std::pair{left, right}, std::pair{0U, 0U}).second) {
      pairs.push_back({left, right, id, id});
      ids.push_back(id);
    }
  }
  return pairs;
}

std::string random_word(std::mt19937& random, std::uint32_t letters, std::size_t size) {
  std::string word;
  for (std::size_t i = 0; i < size; ++i) {
    word.push_back(static_cast<char>('a' + random() % letters));
  }
  return word;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(byte_pairs)

BOOST_AUTO_TEST_CASE(short_and_long_words_are_encoded_as_the_definition_says) {
  constexpr unsigned kSeed = 7;
  std::mt19937 random(kSeed);
  BytePairs::Scratch scratch;
  for (int tokenizer = 0; tokenizer < 20; ++tokenizer) {
    const std::uint32_t letters = 1 + random() % 4;
    const std::vector<BytePairs::Pair> pairs = random_pairs(random, letters, 2 + random() % 40);
    const BytePairs table(own_ids(), pairs);
    for (int i = 0; i < 60; ++i) {
      const std::string word = random_word(random, letters, 1 + random() % 200);
      Ids ids;
      table.encode(word, scratch, ids);
      BOOST_TEST((ids == by_definition(word, pairs)), "tokenizer " << tokenizer << ": " << word);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_leftmost_of_equal_pairs_is_merged_first) {
  const BytePairs table(own_ids(), {{'a', 'a', 256, 0}});
  BytePairs::Scratch scratch;
  Ids ids;
  table.encode("aaa", scratch, ids);
  BOOST_TEST(ids == (Ids{256, 'a'}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(of_a_pair_that_is_listed_twice_the_last_rank_counts) {
  const BytePairs table(own_ids(), {{'a', 'b', 256, 0}, {'b', 'c', 257, 1}, {'a', 'b', 256, 2}});
  BytePairs::Scratch scratch;
  Ids ids;
  table.encode("abc", scratch, ids);
  BOOST_TEST(ids == (Ids{'a', 257}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(words_are_kept_apart_by_bytes_and_length) {
  WordCache cache;
  const std::string text(64, '\0');
  const auto key = [&](std::size_t size, std::size_t room) {
    return WordCache::key_of(std::string_view(text).substr(0, size), text.data() + room);
  };
  for (std::size_t size = 1; size <= WordCache::Slot::kMostBytes; ++size) {
    BOOST_TEST((key(size, 64) == key(size, size)));  // with and without room to read behind it
    BOOST_TEST((key(size, 64) != key(size - 1, 64)));
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera
