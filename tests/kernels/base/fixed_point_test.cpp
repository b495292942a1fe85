#include "kernels/base/fixed_point.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/random.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

using Words = std::array<std::int64_t, kFixedPointWords>;

void add(double value, Words& words) {
  fixed_point_parts(value, [&words](int word, std::int64_t amount) {
    words.at(static_cast<std::size_t>(word)) += amount;
  });
}

double sum_of(const std::vector<double>& values) {
  Words words{};
  for (const double value : values) {
    add(value, words);
  }
  return fixed_point_value(words.data());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(fixed_point)

BOOST_AUTO_TEST_CASE(one_number_comes_back_exactly) {
  for (const double value :
       {0.0, 1.0, -1.0, 0.1, -0.1, 0x1p-75, 0x1.fffffffffffffp127, -0x1.fffffffffffffp127, 1e-20,
        3.5e30, 0x1.123456789abcdp31, 0x1.123456789abcdp32, 0x1.123456789abcdp-32}) {
    BOOST_CHECK_EQUAL(sum_of({value}), value);
  }
}

BOOST_AUTO_TEST_CASE(numbers_of_any_exponent_come_back_exactly) {
  constexpr int kLowest = -75;  // 53 bits above 2^-128
  for (int exponent = kLowest; exponent < 127; ++exponent) {
    const auto number = static_cast<std::uint64_t>(exponent - kLowest);
    const double mantissa = 1 + uniform_from(philox(kSeed, 1, number)[0]);
    const double value = std::ldexp(mantissa + 0x1p-52, exponent);
    BOOST_CHECK_EQUAL(sum_of({value}), value);
    BOOST_CHECK_EQUAL(sum_of({-value}), -value);
  }
}

BOOST_AUTO_TEST_CASE(sums_are_exact_where_doubles_are_not) {
  BOOST_CHECK_EQUAL(sum_of({1e30, 1, -1e30}), 1.0);
  BOOST_CHECK_EQUAL(sum_of({0x1p100, 0x1p-60, -0x1p100}), 0x1p-60);
  BOOST_CHECK_EQUAL(sum_of({0.1, -0.1}), 0.0);
  BOOST_CHECK_EQUAL(sum_of({-3, 1}), -2.0);
}

BOOST_AUTO_TEST_CASE(what_lies_below_the_lowest_limb_is_cut_off_towards_zero) {
  BOOST_CHECK_EQUAL(sum_of({0x1p-129}), 0.0);
  BOOST_CHECK_EQUAL(sum_of({-0x1p-129}), 0.0);
  BOOST_CHECK_EQUAL(sum_of({0x1.8p-128}), 0x1p-128);
  BOOST_CHECK_EQUAL(sum_of({-0x1.8p-128}), -0x1p-128);
  BOOST_CHECK_EQUAL(sum_of({std::numeric_limits<double>::denorm_min()}), 0.0);
}

BOOST_AUTO_TEST_CASE(the_order_does_not_change_a_bit) {
  std::vector<double> values;
  constexpr std::uint64_t kCount = 5000;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const int exponent = static_cast<int>(philox(kSeed, 2, i)[0] % 150) - 75;
    values.push_back(std::ldexp(normal(kSeed, 3, i), exponent));
  }
  Words forwards{};
  for (const double value : values) {
    add(value, forwards);
  }
  std::reverse(values.begin(), values.end());
  Words backwards{};
  for (const double value : values) {
    add(value, backwards);
  }
  BOOST_TEST(forwards == backwards, boost::test_tools::per_element());
  // in two halves, added word by word
  Words first{};
  Words second{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    add(values[i], i % 3 == 0 ? first : second);
  }
  for (std::size_t i = 0; i < first.size(); ++i) {
    first.at(i) += second.at(i);
  }
  BOOST_TEST(first == forwards, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(equal_sums_have_equal_values_whatever_their_carries) {
  // 2^32 ones in limb 4 against one in limb 5
  Words many{};
  Words one{};
  add(0x1p32, one);
  many.at(4) = std::int64_t{1} << 32;
  BOOST_CHECK_EQUAL(fixed_point_value(many.data()), fixed_point_value(one.data()));
  // a negative limb under a positive one
  Words mixed{};
  mixed.at(5) = 1;
  mixed.at(4) = -1;
  BOOST_CHECK_EQUAL(fixed_point_value(mixed.data()), 0x1p32 - 1);
  mixed.at(5) = -1;
  mixed.at(4) = 1;
  BOOST_CHECK_EQUAL(fixed_point_value(mixed.data()), -(0x1p32 - 1));
}

BOOST_AUTO_TEST_CASE(numbers_that_do_not_fit_make_the_sum_nan) {
  for (const double value : {std::nan(""), std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity(), 0x1p128, -0x1p200}) {
    Words words{};
    add(1, words);
    add(value, words);
    BOOST_CHECK_EQUAL(words.back(), 1);
    BOOST_CHECK(std::isnan(fixed_point_value(words.data())));
  }
}

BOOST_AUTO_TEST_CASE(the_value_is_within_two_units_of_the_exact_sum) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::vector<double> values;
    long double exact = 0;
    for (std::uint64_t i = 0; i < 10; ++i) {
      // integers of 60 bits as two doubles: the sum is exact in long double
      const auto words = philox(kSeed, 10 + seed, i);
      const double high = std::ldexp(static_cast<double>(words[0] >> 8U), 32);
      const double low = static_cast<double>(words[1]) * (i % 2 == 0 ? 1 : -1);
      values.push_back(high);
      values.push_back(low);
      exact += static_cast<long double>(high) + static_cast<long double>(low);
    }
    const double value = sum_of(values);
    const double unit = std::ldexp(1.0, std::ilogb(value) - 52);
    BOOST_CHECK_LE(std::abs(static_cast<double>(static_cast<long double>(value) - exact)),
                   2 * unit);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
