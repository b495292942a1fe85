#define BOOST_TEST_MODULE sampler
#include "model/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"

namespace tessera::test {
namespace {

std::map<std::int32_t, int> drawn(std::span<const float> logits, const SamplingOptions& options,
                                  int times) {
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < times; ++i) {
    ++counts[sample_token(logits, options, static_cast<std::uint64_t>(i))];
  }
  return counts;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(sampler)

BOOST_AUTO_TEST_CASE(temperature_0_takes_the_first_of_the_likeliest) {
  const std::array logits = {-1.0F, 3.0F, 3.0F, 2.0F};
  BOOST_TEST(sample_token(logits, {.temperature = 0, .top_p = 1, .seed = 3}, 7) == 1);
}

BOOST_AUTO_TEST_CASE(tokens_come_as_often_as_the_softmax_says) {
  const std::array logits = {std::log(0.5F), std::log(0.3F), std::log(0.2F)};
  constexpr int kTimes = 20000;
  const auto counts = drawn(logits, {.temperature = 1, .top_p = 1, .seed = 1}, kTimes);
  const std::array shares = {0.5, 0.3, 0.2};
  for (std::int32_t id = 0; id < 3; ++id) {
    // five standard deviations of a share of one half
    BOOST_TEST(std::abs(counts.at(id) / double{kTimes} - shares.at(static_cast<std::size_t>(id))) <
               5 * 0.5 / std::sqrt(double{kTimes}));
  }
  // at half the temperature probabilities are squared: 0.25 / 0.38
  const auto colder = drawn(logits, {.temperature = 0.5, .top_p = 1, .seed = 1}, kTimes);
  BOOST_TEST(std::abs(colder.at(0) / double{kTimes} - 0.25 / 0.38) < 0.02);
}

BOOST_AUTO_TEST_CASE(top_p_keeps_as_few_tokens_as_reach_it) {
  const std::array logits = {std::log(0.2F), std::log(0.5F), std::log(0.3F)};
  BOOST_TEST(drawn(logits, {.temperature = 1, .top_p = 0.4, .seed = 1}, 500).size() == 1U);
  const auto two = drawn(logits, {.temperature = 1, .top_p = 0.7, .seed = 1}, 500);
  BOOST_TEST(two.size() == 2U);
  BOOST_TEST(two.count(0) == 0U);
  BOOST_TEST(drawn(logits, {.temperature = 1, .top_p = 0.9, .seed = 1}, 500).size() == 3U);
}

BOOST_AUTO_TEST_CASE(a_seed_gives_the_same_tokens_and_another_one_others) {
  const std::array<float, 64> logits{};
  const auto text = [&](std::uint64_t seed) {
    std::vector<std::int32_t> ids;
    for (std::uint64_t i = 0; i < 32; ++i) {
      ids.push_back(sample_token(logits, {.temperature = 1, .top_p = 1, .seed = seed}, i));
    }
    return ids;
  };
  BOOST_TEST((text(5) == text(5)));
  BOOST_TEST((text(5) != text(6)));
}

BOOST_AUTO_TEST_CASE(texts_of_one_seed_have_random_numbers_of_their_own) {
  const std::array<float, 64> logits{};
  std::vector<std::vector<std::int32_t>> texts;
  for (std::uint64_t text = 0; text < 16; ++text) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {  // those of the next samples
      texts.emplace_back();
      for (std::uint64_t i = 0; i < 32; ++i) {
        texts.back().push_back(
            sample_token(logits, {.temperature = 1, .top_p = 1, .seed = seed, .text = text}, i));
      }
    }
  }
  std::sort(texts.begin(), texts.end());
  BOOST_TEST((std::adjacent_find(texts.begin(), texts.end()) == texts.end()));
}

BOOST_AUTO_TEST_CASE(logits_that_are_not_finite_are_reported_to_have_diverged) {
  const std::array logits = {1.0F, std::numeric_limits<float>::quiet_NaN()};
  BOOST_CHECK_THROW((void)sample_token(logits, {}, 0), DivergedError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
