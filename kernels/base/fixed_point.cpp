#include "kernels/base/fixed_point.h"

#include <array>
#include <cmath>
#include <limits>

namespace tessera {

double fixed_point_value(const std::int64_t* words) noexcept {
  if (words[kFixedPointLimbs] != 0) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  // Carries first, so that equal sums have equal limbs: each limb in [0, 2^32), the sign in the
  // carry.
  std::array<std::int64_t, kFixedPointLimbs + 1> limbs{};
  std::int64_t carry = 0;
  for (int i = 0; i < kFixedPointLimbs; ++i) {
    const std::int64_t sum = words[i] + carry;
    limbs[static_cast<std::size_t>(i)] = sum & 0xFFFFFFFF;
    carry = sum >> 32;
  }
  limbs[kFixedPointLimbs] = carry;
  const bool negative = carry < 0;
  if (negative) {  // two's complement over all limbs
    std::int64_t borrow = 1;
    for (int i = 0; i < kFixedPointLimbs; ++i) {
      const std::int64_t flipped = (limbs[static_cast<std::size_t>(i)] ^ 0xFFFFFFFF) + borrow;
      limbs[static_cast<std::size_t>(i)] = flipped & 0xFFFFFFFF;
      borrow = flipped >> 32;
    }
    limbs[kFixedPointLimbs] = ~limbs[kFixedPointLimbs] + borrow;
  }
  double value = 0;
  for (int i = kFixedPointLimbs; i >= 0; --i) {
    value += std::ldexp(static_cast<double>(limbs[static_cast<std::size_t>(i)]),
                        32 * i + kFixedPointLowestExponent);
  }
  return negative ? -value : value;
}

}  // namespace tessera
