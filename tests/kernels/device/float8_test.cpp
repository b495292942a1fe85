#include "kernels/device/float8.h"

#include <cmath>
#include <limits>
#include <string>

#include <boost/test/unit_test.hpp>

namespace tessera::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Every number of the type with its two neighbours, in ascending order: what lies between two of
// them must become the nearer one, and at the middle the one whose code is even.
template <typename Float8, typename Encode>
void check_rounding(unsigned largest, const Encode& encode) {
  for (unsigned code = 0; code < largest; ++code) {
    BOOST_TEST_CONTEXT("code " << code) {
      const float below = to_float(Float8{static_cast<std::uint8_t>(code)});
      const float above = to_float(Float8{static_cast<std::uint8_t>(code + 1)});
      BOOST_REQUIRE_LT(below, above);
      const float middle = (below + above) / 2;  // exact in f32
      BOOST_TEST(encode(below).bits == code);
      BOOST_TEST(encode(std::nextafter(middle, below)).bits == code);
      BOOST_TEST(encode(middle).bits == (code % 2 == 0 ? code : code + 1));
      BOOST_TEST(encode(std::nextafter(middle, above)).bits == code + 1);
      BOOST_TEST(encode(-above).bits == ((code + 1U) | 0x80U));
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(float8)

BOOST_AUTO_TEST_CASE(codes_have_the_values_of_the_specification) {
  const auto e4m3 = [](std::uint8_t bits) { return to_float(Float8E4M3{bits}); };
  BOOST_TEST(e4m3(0x00) == 0.0F);
  BOOST_TEST(e4m3(0x01) == 0x1p-9F);
  BOOST_TEST(e4m3(0x07) == 0x7p-9F);
  BOOST_TEST(e4m3(0x08) == 0x1p-6F);
  BOOST_TEST(e4m3(0x38) == 1.0F);
  BOOST_TEST(e4m3(0xB9) == -1.125F);
  BOOST_TEST(e4m3(0x7E) == 448.0F);
  BOOST_TEST(std::isnan(e4m3(0x7F)));
  BOOST_TEST(std::isnan(e4m3(0xFF)));
  const auto e5m2 = [](std::uint8_t bits) { return to_float(Float8E5M2{bits}); };
  BOOST_TEST(e5m2(0x01) == 0x1p-16F);
  BOOST_TEST(e5m2(0x04) == 0x1p-14F);
  BOOST_TEST(e5m2(0x3C) == 1.0F);
  BOOST_TEST(e5m2(0xBD) == -1.25F);
  BOOST_TEST(e5m2(0x7B) == 57344.0F);
  BOOST_TEST(e5m2(0x7C) == kInfinity);
  BOOST_TEST(e5m2(0xFC) == -kInfinity);
  BOOST_TEST(std::isnan(e5m2(0x7D)));
  BOOST_TEST(std::isnan(e5m2(0x7F)));
}

BOOST_AUTO_TEST_CASE(numbers_become_the_nearest_and_ties_the_even_one) {
  check_rounding<Float8E4M3>(0x7E, to_e4m3);
  check_rounding<Float8E5M2>(0x7B, to_e5m2);
}

BOOST_AUTO_TEST_CASE(what_is_too_large_becomes_the_largest_and_nan_stays_nan) {
  for (const float large : {449.0F, 464.0F, 1e30F, kInfinity}) {
    BOOST_TEST(to_e4m3(large).bits == 0x7E);
    BOOST_TEST(to_e4m3(-large).bits == 0xFE);
  }
  for (const float large : {57345.0F, 61440.0F, 1e30F, kInfinity}) {
    BOOST_TEST(to_e5m2(large).bits == 0x7B);
    BOOST_TEST(to_e5m2(-large).bits == 0xFB);
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  BOOST_TEST(std::isnan(to_float(to_e4m3(nan))));
  BOOST_TEST(std::isnan(to_float(to_e5m2(nan))));
  BOOST_TEST(to_e4m3(-0.0F).bits == 0x80);
  BOOST_TEST(to_e5m2(std::numeric_limits<float>::denorm_min()).bits == 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
