// Exact sums of real numbers as integers: 8 limbs of 32 bits, from 2^-128 to 2^128, each kept in a
// 64-bit word so that up to 2^31 numbers can be added before any carry. Integer addition does not
// depend on the order, so neither do norms and losses on ranks, threads or blocks.
//
// Compiles for host and device (TESSERA_HOST_DEVICE).
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#  define TESSERA_HOST_DEVICE __host__ __device__
#else
#  define TESSERA_HOST_DEVICE
#endif

namespace tessera {

inline constexpr int kFixedPointLimbs = 8;
inline constexpr int kFixedPointLowestExponent = -128;  // weight of bit 0 of limb 0 is 2^-128
/// i64 words of one sum: the limbs, lowest first, then the count of numbers that did not fit (NaN,
/// infinite, or 2^128 and above in magnitude).
inline constexpr int kFixedPointWords = kFixedPointLimbs + 1;

/// Hands the parts of `value` to `add(word, amount)`: at most three limbs, or the last word.
/// What is below 2^-128 is cut off towards zero.
template <typename Add>
TESSERA_HOST_DEVICE void fixed_point_parts(double value, Add add) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  const bool negative = (bits >> 63U) != 0;
  const int biased = static_cast<int>((bits >> 52U) & 0x7FFU);
  std::uint64_t mantissa = bits & 0xFFFFFFFFFFFFFULL;
  if (biased == 0) {
    return;  // zero, or far below 2^-128
  }
  mantissa |= 1ULL << 52U;
  // value = mantissa * 2^(biased - 1075); bit position of the mantissa's lowest bit:
  int position = biased - 1075 - kFixedPointLowestExponent;
  if (biased == 0x7FF || position + 53 > 32 * kFixedPointLimbs) {
    add(kFixedPointLimbs, std::int64_t{1});
    return;
  }
  if (position < 0) {
    if (position <= -53) {
      return;
    }
    mantissa >>= static_cast<unsigned>(-position);
    position = 0;
  }
  int limb = position / 32;
  const auto shift = static_cast<unsigned>(position % 32);
  // the 53 bits, shifted by up to 31, fill three 32-bit pieces
  const std::uint64_t low = (mantissa << shift) & 0xFFFFFFFFULL;
  const std::uint64_t rest = mantissa >> (32U - shift);
  // NOLINTNEXTLINE(*-avoid-c-arrays): std::array has no device functions
  const std::uint64_t pieces[3] = {low, rest & 0xFFFFFFFFULL, rest >> 32U};
  for (int i = 0; i < 3; ++i, ++limb) {
    if (pieces[i] != 0) {
      const auto amount = static_cast<std::int64_t>(pieces[i]);
      add(limb, negative ? -amount : amount);
    }
  }
}

/// The sum as a double, rounded to nearest from the exact value to within 2 units in the last
/// place; bit-identical for the same sum, however it was added up. NaN if some number did not fit.
/// `words` has kFixedPointWords entries.
[[nodiscard]] double fixed_point_value(const std::int64_t* words) noexcept;

}  // namespace tessera
