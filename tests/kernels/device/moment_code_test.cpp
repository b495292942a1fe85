#include "kernels/device/moment_code.h"

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include <boost/test/unit_test.hpp>

namespace tessera::test {
namespace {

constexpr std::uint32_t kRandoms = 1U << 16U;
constexpr int kCodes = 256;
constexpr std::uint32_t kZeroExponent = 127;

std::uint32_t bits_of(float number) {
  return std::bit_cast<std::uint32_t>(number);
}
std::uint32_t scale_bits(int exponent) {
  return (kZeroExponent + static_cast<std::uint32_t>(exponent)) << 23U;
}
float number_of(std::uint16_t half) {
  return std::bit_cast<float>(std::uint32_t{half} << 16U);
}

// A few numbers of all sizes below 1.875, and of both signs.
std::vector<float> some_numbers() {
  std::vector<float> numbers;
  for (int i = 0; i < 400; ++i) {
    const double size = std::exp2(-i / 20.0);
    numbers.push_back(static_cast<float>(1.87 * size));
    numbers.push_back(static_cast<float>(-1.3 * size));
  }
  return numbers;
}

// The mean over all random bits, of numbers that are rounded from this one.
double mean_of(const std::function<float(std::uint32_t random)>& rounded) {
  double sum = 0;
  for (std::uint32_t random = 0; random < kRandoms; ++random) {
    sum += static_cast<double>(rounded(random));
  }
  return sum / kRandoms;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(moment_code)

BOOST_AUTO_TEST_CASE(every_code_comes_back_whatever_the_random_bits) {
  for (const int exponent : {-90, -40, 0, 3, 100}) {
    const std::uint32_t scale = scale_bits(exponent);
    for (int i = 0; i < kCodes; ++i) {
      const auto code = static_cast<std::uint8_t>(i);
      for (const std::uint32_t random : {0U, 1U, 0x8000U, 0xFFFFU}) {
        BOOST_REQUIRE_EQUAL(signed_code(bits_of(signed_number(code, scale)), scale, random), code);
        BOOST_REQUIRE_EQUAL(unsigned_code(bits_of(unsigned_number(code, scale)), scale, random),
                            code);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(codes_are_in_order_and_bf16_numbers) {
  const std::uint32_t scale = scale_bits(0);
  BOOST_TEST(unsigned_number(0, scale) == 0.0F);
  BOOST_TEST(unsigned_number(1, scale) == 0x1p-33F);
  BOOST_TEST(unsigned_number(255, scale) == 1.875F);
  BOOST_TEST(signed_number(1, scale) == 0x1p-17F);
  BOOST_TEST(signed_number(127, scale) == 1.875F);
  BOOST_TEST(signed_number(255, scale) == -1.875F);
  for (int i = 0; i < kCodes; ++i) {
    const auto code = static_cast<std::uint8_t>(i);
    BOOST_TEST((bits_of(unsigned_number(code, scale)) & 0xFFFFU) == 0U);
    BOOST_TEST((bits_of(signed_number(code, scale)) & 0xFFFFU) == 0U);
    if (i > 0) {
      const auto before = static_cast<std::uint8_t>(i - 1);
      BOOST_TEST(unsigned_number(code, scale) > unsigned_number(before, scale));
      BOOST_TEST((i == 128 ||
                  std::abs(signed_number(code, scale)) > std::abs(signed_number(before, scale))));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_scale_is_the_least_power_of_two_that_holds_the_largest_number) {
  for (const float largest : {1.0F, 0.9375F, 0.93750006F, 1.875F, 1.8750001F, 3e-5F, 7e20F}) {
    const auto scale = std::bit_cast<float>(block_scale(bits_of(largest)));
    BOOST_TEST((bits_of(scale) & detail::kMantissa) == 0U);
    BOOST_TEST(largest <= 1.875F * scale);
    BOOST_TEST(largest > 1.875F * scale / 2);
  }
  BOOST_TEST(block_scale(0) == 0U);
  BOOST_TEST(block_scale(1) == scale_bits(-90));  // the least: no code is subnormal
  BOOST_TEST(block_scale(bits_of(std::numeric_limits<float>::max())) == scale_bits(127));
}

BOOST_AUTO_TEST_CASE(what_is_not_finite_is_not_finite_afterwards) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const float wrong : {kInfinity, kNaN}) {
    const std::uint32_t scale = block_scale(bits_of(wrong) & detail::kMagnitude);
    BOOST_TEST(std::isnan(signed_number(signed_code(bits_of(wrong), scale, 7), scale)));
    BOOST_TEST(std::isnan(unsigned_number(unsigned_code(bits_of(1.0F), scale, 7), scale)));
  }
  BOOST_TEST(number_of(signed_bf16(bits_of(kInfinity), 0xFFFF)) == kInfinity);
  BOOST_TEST(number_of(signed_bf16(bits_of(-kInfinity), 0xFFFF)) == -kInfinity);
  BOOST_TEST(std::isnan(number_of(signed_bf16(0x7F800001U, 0))));
  BOOST_TEST(std::isnan(number_of(unsigned_bf16(0x7FFFFFFFU, 0xFFFF))));
}

// What is rounded is one of the two neighbours, and the number itself on average.
BOOST_AUTO_TEST_CASE(rounding_has_no_bias) {
  const std::uint32_t scale = scale_bits(0);
  for (const float number : some_numbers()) {
    // half of the last of 16 bits of a step, which is at most an eighth of the number or the least
    const double size = std::abs(static_cast<double>(number));
    const double of_signed = mean_of([&](std::uint32_t random) {
      return signed_number(signed_code(bits_of(number), scale, random), scale);
    });
    BOOST_TEST(std::abs(of_signed - number) <= std::max(size / 8, 0x1p-17) * 0x1p-15,
               number << " became " << of_signed);
    const double of_bf16 = mean_of(
        [&](std::uint32_t random) { return number_of(signed_bf16(bits_of(number), random)); });
    BOOST_TEST(of_bf16 == static_cast<double>(number), boost::test_tools::tolerance(1e-12));
    if (number > 0) {
      const double of_unsigned = mean_of([&](std::uint32_t random) {
        return unsigned_number(unsigned_code(bits_of(number), scale, random), scale);
      });
      BOOST_TEST(std::abs(of_unsigned - number) <= std::max(size / 8, 0x1p-33) * 0x1p-15,
                 number << " became " << of_unsigned);
    }
  }
}

// The update would divide by eps alone.
BOOST_AUTO_TEST_CASE(no_second_moment_above_zero_becomes_zero) {
  for (const std::uint32_t largest : {1U, bits_of(1e-30F), bits_of(1.0F), bits_of(1e30F)}) {
    const std::uint32_t scale = block_scale(largest);
    for (const std::uint32_t bits : {1U, 0x7FFFU, 0x8000U, bits_of(1e-38F), bits_of(1e-20F)}) {
      for (const std::uint32_t random : {0U, 0xFFFFU}) {
        if (bits <= largest) {
          BOOST_TEST(unsigned_number(unsigned_code(bits, scale, random), scale) > 0.0F);
        }
        BOOST_TEST(number_of(unsigned_bf16(bits, random)) > 0.0F);
      }
    }
    BOOST_TEST(unsigned_code(0, scale, 0xFFFF) == 0);
  }
  BOOST_TEST(unsigned_bf16(0, 0xFFFF) == 0);
}

BOOST_AUTO_TEST_CASE(random_bits_follow_seed_update_unit_and_element) {
  const RoundingKey key = {.seed = 7, .update = 3, .unit = 2};
  BOOST_TEST((random_quad(key, 5) == random_quad(key, 5)));
  BOOST_TEST((random_quad(key, 5) != random_quad(key, 6)));
  for (const RoundingKey& other :
       {RoundingKey{8, 3, 2}, RoundingKey{7, 4, 2}, RoundingKey{7, 3, 1}, RoundingKey{7, 2, 3}}) {
    BOOST_TEST((random_quad(key, 5) != random_quad(other, 5)));
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
