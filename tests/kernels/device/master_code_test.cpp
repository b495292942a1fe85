#include "kernels/device/master_code.h"

#include <cmath>
#include <limits>

#include <boost/test/unit_test.hpp>

#include "kernels/base/types.h"

namespace tessera::test {
namespace {

constexpr std::uint64_t kAllCodes = std::uint64_t{1} << 32U;

// Counts the f32 numbers, by their bits, of which `is_wrong` is true; says the first.
template <typename IsWrong>
std::uint64_t count_wrong(const IsWrong& is_wrong) {
  std::uint64_t wrong = 0;
  std::uint64_t first = kAllCodes;
#pragma omp parallel for reduction(+ : wrong) reduction(min : first)
  for (std::uint64_t code = 0; code < kAllCodes; ++code) {
    if (is_wrong(static_cast<std::uint32_t>(code))) {
      ++wrong;
      first = std::min(first, code);
    }
  }
  BOOST_TEST(wrong == 0U, wrong << " of 2^32, the first 0x" << std::hex << first);
  return wrong;
}

double number(std::uint32_t bits) {
  return static_cast<double>(std::bit_cast<float>(bits));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(master_code)

// By the definition: no bf16 number is nearer, and of two that are as near it is the larger one. Of
// each upper half with the lower halves about a tie: what is between them goes where they go.
BOOST_AUTO_TEST_CASE(a_parameter_is_its_master_rounded_half_away_from_zero) {
  constexpr std::uint32_t kStep = 0x10000U;
  for (std::uint32_t upper = 0; upper <= 0x7F7FU; ++upper) {
    const std::uint32_t lower = upper << 16U;
    // beyond the largest bf16 number the next one would be 2^128: infinity
    const double above = upper == 0x7F7FU ? 0x1p128 : number(lower + kStep);
    for (const std::uint32_t rest : {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      const double exact = number(lower + rest);
      const bool goes_up = above - exact <= exact - number(lower);
      const std::uint32_t expected = upper + (goes_up ? 1U : 0U);
      BOOST_REQUIRE_EQUAL(param_bits(lower + rest), expected);
      BOOST_REQUIRE_EQUAL(param_bits(0x80000000U + lower + rest), 0x8000U + expected);
    }
  }
  BOOST_TEST(param_bits(0x7F800000U) == 0x7F80U);
  BOOST_TEST(param_bits(0xFF800000U) == 0xFF80U);
  for (const std::uint32_t nan : {0x7F800001U, 0x7FFFFFFFU, 0xFF800001U, 0xFFFFFFFFU}) {
    BOOST_TEST(param_bits(nan) == 0x7FFFU);
  }
}

BOOST_AUTO_TEST_CASE(every_number_comes_back_from_its_parameter_and_remainder) {
  count_wrong([](std::uint32_t bits) {
    const std::uint32_t back = master_bits(param_bits(bits), remainder_bits(bits));
    return back != (detail::is_nan_bits(bits) ? 0x7FFF0000U : bits);
  });
}

BOOST_AUTO_TEST_CASE(ties_go_away_from_zero) {
  BOOST_TEST(to_float(param_of(1.00390625F)) == 1.0078125F);
  BOOST_TEST(to_float(param_of(-1.00390625F)) == -1.0078125F);
  BOOST_TEST(to_float(param_of(1.01171875F)) == 1.015625F);
  BOOST_TEST(to_float(param_of(std::numeric_limits<float>::max())) ==
             std::numeric_limits<float>::infinity());
  BOOST_TEST(std::isnan(to_float(param_of(std::bit_cast<float>(0x7FFFFFFFU)))));
  BOOST_TEST(std::isnan(to_float(param_of(std::bit_cast<float>(0x7F800001U)))));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
