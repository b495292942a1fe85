#include "kernels/device/tensor_view.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/base/error.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Round to nearest even by its definition: the nearer of the two neighbours, in f64.
double nearest_bfloat16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value) & 0xFFFF0000U;
  const double towards_zero = std::bit_cast<float>(bits);
  const auto away_bits = bits + 0x10000U;
  // beyond the largest number the next step would have been 2^128
  const double away = (away_bits & 0x7F800000U) == 0x7F800000U
                          ? std::copysign(0x1p128, static_cast<double>(value))
                          : static_cast<double>(std::bit_cast<float>(away_bits));
  const double below = std::abs(static_cast<double>(value) - towards_zero);
  const double above = std::abs(away - static_cast<double>(value));
  const bool is_even = (bits & 0x10000U) == 0;
  if (below < above || (below == above && is_even)) {
    return towards_zero;
  }
  return std::abs(away) == 0x1p128 ? std::copysign(static_cast<double>(kInfinity), away) : away;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tensor_view)

BOOST_AUTO_TEST_CASE(bfloat16_rounds_to_nearest_even) {
  constexpr std::uint32_t kStride = 65521;  // a prime: every pattern of the lower half turns up
  std::uint32_t bits = 0;
  do {
    const auto value = std::bit_cast<float>(bits);
    if (std::isfinite(value)) {
      BOOST_REQUIRE_EQUAL(static_cast<double>(to_float(to_bfloat16(value))),
                          nearest_bfloat16(value));
    }
    bits += kStride;
  } while (bits >= kStride);
  BOOST_CHECK_EQUAL(to_bfloat16(1.00390625F).bits, to_bfloat16(1.0F).bits);       // tie, to even
  BOOST_CHECK_EQUAL(to_bfloat16(1.01171875F).bits, to_bfloat16(1.015625F).bits);  // tie, to even
}

BOOST_AUTO_TEST_CASE(bfloat16_keeps_infinity_nan_and_the_sign_of_zero) {
  BOOST_CHECK_EQUAL(to_float(to_bfloat16(kInfinity)), kInfinity);
  BOOST_CHECK_EQUAL(to_float(to_bfloat16(-kInfinity)), -kInfinity);
  BOOST_CHECK(std::signbit(to_float(to_bfloat16(-0.0F))));
  for (const std::uint32_t bits : {0x7FC00000U, 0x7F800001U, 0x7FFFFFFFU, 0xFF800001U}) {
    BOOST_CHECK(std::isnan(to_float(to_bfloat16(std::bit_cast<float>(bits)))));
  }
}

BOOST_AUTO_TEST_CASE(every_bfloat16_comes_back) {
  for (std::uint32_t bits = 0; bits <= 0xFFFFU; ++bits) {
    const BFloat16 half = {static_cast<std::uint16_t>(bits)};
    if (!std::isnan(to_float(half))) {
      BOOST_REQUIRE_EQUAL(to_bfloat16(to_float(half)).bits, half.bits);
    }
  }
}

BOOST_AUTO_TEST_CASE(shapes_count_beyond_32_bits) {
  const Shape shape = {70000, 50257, 2};
  BOOST_CHECK_EQUAL(shape.count(), Index{70000} * 50257 * 2);
  BOOST_CHECK_EQUAL(shape.rank(), 3);
  BOOST_CHECK_EQUAL(shape[1], 50257);
  BOOST_CHECK_EQUAL(Shape{}.count(), 0);
  BOOST_CHECK_EQUAL((Shape{3, 0, 5}.count()), 0);
}

BOOST_AUTO_TEST_CASE(shapes_that_are_none_are_refused) {
  BOOST_CHECK_THROW((Shape{1, 2, 3, 4, 5}), ContractError);
  BOOST_CHECK_THROW((Shape{2, -1}), ContractError);
  BOOST_CHECK_THROW((void)(Shape{2, 3}[2]), ContractError);
}

BOOST_AUTO_TEST_CASE(slices_and_reshapes_look_at_the_same_elements) {
  std::array<float, 12> numbers{};
  const TensorView view = {numbers.data(), DType::f32, {3, 4}, Device{}};
  BOOST_CHECK_EQUAL(data_as<float>(view.slice(5, 9)), numbers.data() + 5);
  BOOST_CHECK_EQUAL(view.slice(5, 9).count(), 4);
  BOOST_CHECK_EQUAL(view.slice(12, 12).count(), 0);
  BOOST_CHECK(view.reshaped({2, 6}).shape == (Shape{2, 6}));
  BOOST_CHECK_THROW((void)view.slice(3, 13), ContractError);
  BOOST_CHECK_THROW((void)view.slice(4, 3), ContractError);
  BOOST_CHECK_THROW((void)view.slice(-1, 3), ContractError);
  BOOST_CHECK_THROW((void)view.reshaped({5, 2}), ContractError);
}

BOOST_AUTO_TEST_CASE(slices_of_a_planned_tensor_stay_null) {
  const TensorView planned = {nullptr, DType::f32, {100}, Device{}};
  BOOST_CHECK(planned.slice(10, 20).data == nullptr);
}

BOOST_AUTO_TEST_CASE(a_pointer_of_another_type_is_refused) {
  std::array<float, 2> numbers{};
  const TensorView view = {numbers.data(), DType::f32, {2}, Device{}};
  BOOST_CHECK_THROW((void)data_as<double>(view), ContractError);
  BOOST_CHECK_THROW((void)data_as<std::int32_t>(ConstTensorView(view)), ContractError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
