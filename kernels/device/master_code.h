// A bf16 parameter and the f32 master weight that it is rounded from, as integers.
//
// The parameter is the master rounded half away from zero. Then the lower 16 bits of the master
// (the remainder) say which of its two neighbours the parameter is, so that both together hold the
// master exactly; with ties to even two masters would have the same pair:
//
//   param      = (master + 0x8000) >> 16        remainder = master & 0xFFFF
//   master     = (param << 16) + remainder      minus 0x10000 where the remainder is 0x8000 or more
//
// Infinities, subnormal numbers and -0 come back exactly. Every NaN has parameter 0x7FFF and
// remainder 0, and comes back as the NaN 0x7FFF0000. Integers alone: nothing is flushed to zero.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/device/tensor_view.h"

namespace tessera {

namespace detail {
inline constexpr std::uint32_t kMagnitude = 0x7FFFFFFFU;
inline constexpr std::uint32_t kInfinityBits = 0x7F800000U;
inline constexpr std::uint32_t kHalfOfLast = 0x8000U;  // of bf16's last place
inline constexpr std::uint32_t kLowerHalf = 0xFFFFU;
inline constexpr std::uint32_t kParamNan = 0x7FFFU;
constexpr bool is_nan_bits(std::uint32_t bits) {
  return (bits & kMagnitude) > kInfinityBits;
}
}  // namespace detail

/// The bits of the parameter of a master weight with these bits.
[[nodiscard]] constexpr std::uint16_t param_bits(std::uint32_t master) {
  return static_cast<std::uint16_t>(
      detail::is_nan_bits(master) ? detail::kParamNan : (master + detail::kHalfOfLast) >> 16U);
}

/// The bits of a master weight that its parameter does not hold.
[[nodiscard]] constexpr std::uint16_t remainder_bits(std::uint32_t master) {
  return static_cast<std::uint16_t>(detail::is_nan_bits(master) ? 0U : master & detail::kLowerHalf);
}

/// The bits of the master weight with this parameter and this remainder.
[[nodiscard]] constexpr std::uint32_t master_bits(std::uint16_t param, std::uint16_t remainder) {
  // the remainder with a sign: what was rounded up is taken off again
  return (static_cast<std::uint32_t>(param) << 16U) +
         ((remainder ^ detail::kHalfOfLast) - detail::kHalfOfLast);
}

/// The parameter of a master weight.
[[nodiscard]] inline BFloat16 param_of(float master) noexcept {
  return {param_bits(std::bit_cast<std::uint32_t>(master))};
}

}  // namespace tessera
