// 8-bit floating-point numbers on the host, as OCP's "8-bit Floating Point Specification" (OFP8)
// and CUDA have them.
//
//          exponent bits, bias   mantissa bits   largest   smallest   infinity
//   e4m3   4, 7                  3               448       2^-9       none
//   e5m2   5, 15                 2               57344     2^-16      yes
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/device/tensor_view.h"

namespace tessera {

struct Float8E4M3 {
  std::uint8_t bits;
};
struct Float8E5M2 {
  std::uint8_t bits;
};

namespace detail {

template <typename Float8>
struct Float8Format;
template <>
struct Float8Format<Float8E4M3> {
  static constexpr int kMantissaBits = 3;
  static constexpr int kBias = 7;
  static constexpr unsigned kLargest = 0x7E;
  static constexpr unsigned kInfinity = 0x7F;  // there is none: its place is the NaN
};
template <>
struct Float8Format<Float8E5M2> {
  static constexpr int kMantissaBits = 2;
  static constexpr int kBias = 15;
  static constexpr unsigned kLargest = 0x7B;
  static constexpr unsigned kInfinity = 0x7C;
};

inline constexpr unsigned kFloat8Sign = 0x80;
inline constexpr unsigned kFloat8Nan = 0x7F;

constexpr float power_of_two(int exponent) {
  constexpr int kF32Bias = 127;
  constexpr int kF32MantissaBits = 23;
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + kF32Bias) << kF32MantissaBits);
}

template <typename Float8>
constexpr float decoded(unsigned code) {
  using Format = Float8Format<Float8>;
  const unsigned magnitude = code & ~kFloat8Sign;
  const float sign = (code & kFloat8Sign) == 0 ? 1.0F : -1.0F;
  if (magnitude > Format::kLargest) {
    return magnitude == Format::kInfinity && Format::kInfinity != kFloat8Nan
               ? sign * std::bit_cast<float>(0x7F800000U)
               : std::bit_cast<float>(0x7FC00000U);
  }
  const auto exponent = static_cast<int>(magnitude >> Format::kMantissaBits);
  const unsigned mantissa = magnitude & ((1U << Format::kMantissaBits) - 1);
  const unsigned leading = exponent == 0 ? 0U : 1U << Format::kMantissaBits;
  return sign * static_cast<float>(leading | mantissa) *
         power_of_two(std::max(exponent, 1) - Format::kBias - Format::kMantissaBits);
}

template <typename Float8>
inline constexpr auto kDecoded = [] {
  std::array<float, 256> values{};
  for (unsigned code = 0; code < values.size(); ++code) {
    values.at(code) = decoded<Float8>(code);
  }
  return values;
}();

// Without branches, so that loops are vectorised.
template <typename Float8>
Float8 encoded(float value) noexcept {
  using Format = Float8Format<Float8>;
  constexpr int kF32Bias = 127;
  constexpr int kF32MantissaBits = 23;
  constexpr int kDropped = kF32MantissaBits - Format::kMantissaBits;
  constexpr auto kLargestBits = std::bit_cast<std::uint32_t>(decoded<Float8>(Format::kLargest));
  constexpr auto kNormalBits = std::bit_cast<std::uint32_t>(power_of_two(1 - Format::kBias));
  // a number whose last place is the smallest number: adding it rounds to multiples of that
  constexpr float kRounder =
      power_of_two(kF32MantissaBits + 1 - Format::kBias - Format::kMantissaBits);
  constexpr std::uint32_t kF32InfinityBits = 0x7F800000U;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & ~(1U << 31U);
  const std::uint32_t cut = std::min(magnitude, kLargestBits);
  // a carry out of the mantissa is the next exponent
  const std::uint32_t rounded = cut + ((1U << (kDropped - 1)) - 1) + ((cut >> kDropped) & 1U);
  const std::uint32_t normal =
      (rounded >> kDropped) -
      (static_cast<unsigned>(kF32Bias - Format::kBias) << Format::kMantissaBits);
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(cut) + kRounder) -
      std::bit_cast<std::uint32_t>(kRounder);
  const std::uint32_t code = magnitude > kF32InfinityBits ? kFloat8Nan
                             : cut < kNormalBits          ? subnormal
                                                          : normal;
  return {static_cast<std::uint8_t>(((bits >> 24U) & kFloat8Sign) | code)};
}

template <>
struct DTypeOf<Float8E4M3> {
  static constexpr DType kValue = DType::e4m3;
};
template <>
struct DTypeOf<Float8E5M2> {
  static constexpr DType kValue = DType::e5m2;
};

}  // namespace detail

[[nodiscard]] inline float to_float(Float8E4M3 value) noexcept {
  return detail::kDecoded<Float8E4M3>[value.bits];
}
[[nodiscard]] inline float to_float(Float8E5M2 value) noexcept {
  return detail::kDecoded<Float8E5M2>[value.bits];
}

/// Rounds to nearest even. What is larger than the largest number, infinity too, becomes that; NaN
/// stays NaN: what CUDA calls __NV_SATFINITE.
[[nodiscard]] inline Float8E4M3 to_e4m3(float value) noexcept {
  return detail::encoded<Float8E4M3>(value);
}
[[nodiscard]] inline Float8E5M2 to_e5m2(float value) noexcept {
  return detail::encoded<Float8E5M2>(value);
}

}  // namespace tessera
