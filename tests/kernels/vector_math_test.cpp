#include "kernels/cpu/vector_math.h"

#include <cmath>
#include <limits>

#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Distance of `value` from `exact` in units in the last place of f32 at `exact`.
double units_off(float value, double exact) {
  const auto nearest = static_cast<float>(std::abs(exact));
  const double unit =
      static_cast<double>(std::nextafter(nearest, kInfinity)) - static_cast<double>(nearest);
  return std::abs(static_cast<double>(value) - exact) / unit;
}

// Largest distance over every `stride`th f32 number from `low` to `high`, same sign.
template <typename Function, typename Exact>
double worst(float low, float high, std::uint32_t stride, Function function, Exact exact) {
  double result = 0;
  const auto first = std::bit_cast<std::uint32_t>(std::abs(low) < std::abs(high) ? low : high);
  const auto last = std::bit_cast<std::uint32_t>(std::abs(low) < std::abs(high) ? high : low);
  for (std::uint32_t bits = first; bits <= last; bits += stride) {
    const auto x = std::bit_cast<float>(bits);
    result = std::max(result, units_off(function(x), exact(static_cast<double>(x))));
  }
  return result;
}

double exact_exp(double x) {
  return std::exp(x);
}
double exact_tanh(double x) {
  return std::tanh(x);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(vector_math)

BOOST_AUTO_TEST_CASE(exp_is_within_two_units) {
  constexpr std::uint32_t kStride = 257;  // some 4 million arguments a side
  BOOST_CHECK_LE(worst(1e-10F, 88.7228F, kStride, cpu::exp_f32, exact_exp), 2.0);
  BOOST_CHECK_LE(worst(-86.98F, -1e-10F, kStride, cpu::exp_f32, exact_exp), 2.0);
  BOOST_CHECK_EQUAL(cpu::exp_f32(0.0F), 1.0F);
  BOOST_CHECK_EQUAL(cpu::exp_f32(-0.0F), 1.0F);
}

BOOST_AUTO_TEST_CASE(exp_of_what_has_no_finite_result) {
  BOOST_CHECK_EQUAL(cpu::exp_f32(-kInfinity), 0.0F);
  BOOST_CHECK_EQUAL(cpu::exp_f32(-87.0F), 0.0F);
  BOOST_CHECK_EQUAL(cpu::exp_f32(-1e30F), 0.0F);
  BOOST_CHECK_EQUAL(cpu::exp_f32(std::numeric_limits<float>::lowest()), 0.0F);
  BOOST_CHECK_EQUAL(cpu::exp_f32(88.73F), kInfinity);
  BOOST_CHECK_EQUAL(cpu::exp_f32(1e30F), kInfinity);
  BOOST_CHECK_EQUAL(cpu::exp_f32(kInfinity), kInfinity);
  BOOST_CHECK(std::isnan(cpu::exp_f32(std::numeric_limits<float>::quiet_NaN())));
  BOOST_CHECK(std::isfinite(cpu::exp_f32(88.722F)));
}

BOOST_AUTO_TEST_CASE(tanh_is_within_three_units) {
  constexpr std::uint32_t kStride = 257;
  BOOST_CHECK_LE(worst(1e-10F, 20.0F, kStride, cpu::tanh_f32, exact_tanh), 3.0);
  BOOST_CHECK_LE(worst(-20.0F, -1e-10F, kStride, cpu::tanh_f32, exact_tanh), 3.0);
  BOOST_CHECK_EQUAL(cpu::tanh_f32(0.0F), 0.0F);
  BOOST_CHECK_EQUAL(cpu::tanh_f32(1e4F), 1.0F);
  BOOST_CHECK_EQUAL(cpu::tanh_f32(-kInfinity), -1.0F);
  BOOST_CHECK(std::isnan(cpu::tanh_f32(std::numeric_limits<float>::quiet_NaN())));
}

BOOST_AUTO_TEST_CASE(exp_of_negative_is_finite_for_every_finite_number) {
  BOOST_CHECK(std::isfinite(cpu::exp_of_negative(-1e30F)));
  BOOST_CHECK_EQUAL(cpu::exp_of_negative(1e30F), 0.0F);
  BOOST_CHECK(std::isnan(cpu::exp_of_negative(std::numeric_limits<float>::quiet_NaN())));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
