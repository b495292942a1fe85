#include "kernels/base/random.h"

#include <cmath>

#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

using Words = std::array<std::uint32_t, 4>;

}  // namespace

BOOST_AUTO_TEST_SUITE(random)

// The known answers of philox4x32-10 in Random123 1.09 (kat_vectors): counter words and key words
// are (index low, high, stream low, high) and (seed low, high).
BOOST_AUTO_TEST_CASE(philox_gives_the_known_answers) {
  const Words of_zeros = {0x6627E8D5U, 0xE169C58DU, 0xBC57AC4CU, 0x9B00DBD8U};
  BOOST_TEST(philox(0, 0, 0) == of_zeros, boost::test_tools::per_element());
  const Words of_ones = {0x408F276DU, 0x41C83B0EU, 0xA20BC7C6U, 0x6D5451FDU};
  constexpr std::uint64_t kOnes = ~std::uint64_t{0};
  BOOST_TEST(philox(kOnes, kOnes, kOnes) == of_ones, boost::test_tools::per_element());
  const Words of_pi = {0xD16CFE09U, 0x94FDCCEBU, 0x5001E420U, 0x24126EA1U};
  BOOST_TEST(philox(0x299F31D0A4093822ULL, 0x0370734413198A2EULL, 0x85A308D3243F6A88ULL) == of_pi,
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(uniform_is_never_zero_or_one) {
  BOOST_CHECK_GT(uniform_from(0), 0.0);
  BOOST_CHECK_LT(uniform_from(0xFFFFFFFFU), 1.0);
}

BOOST_AUTO_TEST_CASE(normal_numbers_have_the_moments_of_the_normal_distribution) {
  constexpr std::uint64_t kCount = 100000;
  double sum = 0;
  double squares = 0;
  double fourths = 0;
  double neighbours = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const double value = normal(kSeed, 5, i);
    sum += value;
    squares += value * value;
    fourths += value * value * value * value;
    neighbours += value * normal(kSeed, 5, i + 1);
  }
  // five standard deviations of each estimate: 1, sqrt(2), sqrt(96), 1, over sqrt(count)
  const double deviation = 5 / std::sqrt(static_cast<double>(kCount));
  const auto count = static_cast<double>(kCount);
  BOOST_CHECK_SMALL(sum / count, deviation);
  BOOST_CHECK_SMALL(squares / count - 1, deviation * std::sqrt(2.0));
  BOOST_CHECK_SMALL(fourths / count - 3, deviation * std::sqrt(96.0));
  BOOST_CHECK_SMALL(neighbours / count, deviation);
}

BOOST_AUTO_TEST_CASE(seed_stream_and_index_each_change_the_number) {
  BOOST_CHECK_NE(normal(1, 2, 3), normal(2, 2, 3));
  BOOST_CHECK_NE(normal(1, 2, 3), normal(1, 3, 3));
  BOOST_CHECK_NE(normal(1, 2, 3), normal(1, 2, 4));
  BOOST_CHECK_EQUAL(normal(1, 2, 3), normal(1, 2, 3));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
