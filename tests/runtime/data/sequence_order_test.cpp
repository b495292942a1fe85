#include "runtime/data/sequence_order.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"

namespace tessera::test {
namespace {

std::vector<Index> permutation(Index count, std::uint64_t key) {
  std::vector<Index> values;
  for (Index i = 0; i < count; ++i) {
    values.push_back(permuted(i, count, key));
  }
  return values;
}

BOOST_AUTO_TEST_SUITE(sequence_order)

BOOST_AUTO_TEST_CASE(chosen_places_are_the_middles_of_equal_parts) {
  for (Index count = 1; count <= 60; ++count) {
    for (Index chosen = 1; chosen <= count; ++chosen) {
      Index before = -1;
      for (Index i = 0; i < chosen; ++i) {
        const Index place = evenly_spread(i, chosen, count);
        BOOST_REQUIRE(place > before);
        BOOST_REQUIRE(place < count);
        // within the part that it stands for
        BOOST_REQUIRE(place * chosen <= (i + 1) * count);
        BOOST_REQUIRE((place + 1) * chosen >= i * count);
        BOOST_REQUIRE(chosen < count || place == i);
        before = place;
      }
    }
  }
  BOOST_TEST(evenly_spread(0, 64, 4733) == 36);
  BOOST_TEST(evenly_spread(63, 64, 4733) == 4696);
  constexpr Index kMost = Index{1} << 62U;
  BOOST_TEST(evenly_spread(kMost - 1, kMost, kMost) == kMost - 1);
  BOOST_CHECK_THROW(static_cast<void>(evenly_spread(0, 2, 1)), ContractError);
  BOOST_CHECK_THROW(static_cast<void>(evenly_spread(1, 1, 1)), ContractError);
}

BOOST_AUTO_TEST_CASE(each_index_comes_once_for_counts_at_and_beside_powers) {
  for (const Index count : {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000, 4097}) {
    for (const std::uint64_t key : {0ULL, 1ULL, ~0ULL}) {
      std::vector<Index> values = permutation(count, key);
      std::sort(values.begin(), values.end());
      for (Index i = 0; i < count; ++i) {
        BOOST_REQUIRE_MESSAGE(values[static_cast<std::size_t>(i)] == i,
                              "count " << count << " key " << key << " index " << i);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(every_order_of_four_appears_about_equally_often) {
  std::map<std::vector<Index>, int> seen;
  constexpr int kKeys = 24000;
  for (std::uint64_t key = 0; key < kKeys; ++key) {
    ++seen[permutation(4, key)];
  }
  // 1000 expected of each; six standard deviations are 186
  BOOST_TEST(seen.size() == 24U);
  for (const auto& [order, count] : seen) {
    BOOST_TEST(std::abs(count - 1000) < 186);
  }
}

BOOST_AUTO_TEST_CASE(shuffled_values_are_uncorrelated_with_their_positions) {
  constexpr Index kCount = 10000;
  const std::vector<Index> values = permutation(kCount, 7);
  double sum = 0;
  Index neighbours = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    sum += (static_cast<double>(i) - 4999.5) * (static_cast<double>(values[i]) - 4999.5);
    neighbours += i > 0 && values[i] == values[i - 1] + 1 ? 1 : 0;
  }
  const double variance = (1e8 - 1) / 12;
  BOOST_TEST(std::abs(sum / kCount / variance) < 0.06);  // six standard deviations of 1/100
  BOOST_TEST(neighbours < 12);                           // one expected
}

BOOST_AUTO_TEST_CASE(counts_far_beyond_32_bits_stay_in_range) {
  constexpr Index kCount = (Index{1} << 40U) + 3;
  std::set<Index> seen;
  for (const Index i : {Index{0}, Index{1}, kCount / 2, kCount - 1}) {
    const Index value = permuted(i, kCount, 5);
    BOOST_TEST(value >= 0);
    BOOST_TEST(value < kCount);
    seen.insert(value);
  }
  BOOST_TEST(seen.size() == 4U);
  BOOST_CHECK_THROW(static_cast<void>(permuted(kCount, kCount, 5)), ContractError);
}

BOOST_AUTO_TEST_CASE(files_get_their_share_of_every_prefix) {
  const std::vector<Index> weights = {7, 3, 1, 100, 2};
  const double sum = 113;
  const FileMixer mixer(weights);
  std::vector<Index> counts(weights.size());
  for (Index position = 0; position < Index{5} * 113; ++position) {
    const FileMixer::Place place = mixer.place(position);
    BOOST_REQUIRE_EQUAL(place.index, counts[place.file]);
    ++counts[place.file];
    for (std::size_t f = 0; f < weights.size(); ++f) {
      const double expected =
          static_cast<double>(position + 1) * static_cast<double>(weights[f]) / sum;
      BOOST_REQUIRE_LT(std::abs(static_cast<double>(counts[f]) - expected),
                       static_cast<double>(f) + 1.0);
    }
    if ((position + 1) % 113 == 0) {
      for (std::size_t f = 0; f < weights.size(); ++f) {
        BOOST_REQUIRE_EQUAL(counts[f], (position + 1) / 113 * weights[f]);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(positions_near_the_limit_do_not_overflow) {
  const std::vector<Index> weights = {Index{1} << 60U, Index{1} << 60U};
  const FileMixer mixer(weights);
  const Index position = (Index{1} << 61U) + 1;
  const FileMixer::Place a = mixer.place(position);
  const FileMixer::Place b = mixer.place(position + 1);
  BOOST_TEST(a.file != b.file);
  BOOST_TEST(a.index + b.index >= position - 1);
}

BOOST_AUTO_TEST_CASE(each_epoch_has_each_sequence_once_in_another_order) {
  const std::vector<Index> sequences = {37, 5};
  const SequenceOrder order(sequences, sequences, 11);
  std::vector<std::vector<SequenceId>> epochs;
  for (Index epoch = 0; epoch < 4; ++epoch) {
    std::vector<SequenceId> ids;
    for (Index i = 0; i < 42; ++i) {
      ids.push_back(order.at(epoch * 42 + i));
    }
    BOOST_TEST((std::find(epochs.begin(), epochs.end(), ids) == epochs.end()));
    epochs.push_back(ids);
    BOOST_TEST(std::set<SequenceId>(ids.begin(), ids.end()).size() == 42U);
  }
  const SequenceOrder other(sequences, sequences, 12);
  BOOST_TEST(
      (other.at(0) != order.at(0) || other.at(1) != order.at(1) || other.at(2) != order.at(2)));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
