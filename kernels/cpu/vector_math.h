// Elementary functions in f32 that the compiler can put into vector registers: no branches, no
// tables, no calls. For loops under `#pragma omp simd`.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace tessera::cpu {

/// a * b + c, with one rounding where the machine has an instruction for it.
[[nodiscard]] inline float multiply_add(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

/// exp(x) to within 2 units in the last place for -86.98 <= x <= 88.72. Below it is 0 (the true
/// value is less than 2^-125), also for -infinity; above it is infinity; NaN stays NaN.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2, exp(x) = 2^n exp(r), and exp(r) by the polynomial of the
/// Cephes library (S. Moshier, expf.c). The factor is 2^(n-1) and the polynomial doubled, so that n
/// = 128 needs no infinite factor.
[[nodiscard]] inline float exp_f32(float x) {
  constexpr float kLog2E = 1.44269504088896341F;
  constexpr float kLn2High = 0.693359375F;  // few bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  constexpr float kLowest = -86.98F;
  constexpr float kHighest = 88.7228317F;  // the last x whose exponential is finite
  constexpr std::uint32_t kBias = 126;     // of 2^(n-1)
  constexpr std::uint32_t kMantissaBits = 23;

  const float shifted = multiply_add(x, kLog2E, kRounder);
  const float n = shifted - kRounder;
  float r = multiply_add(n, -kLn2High, x);
  r = multiply_add(n, -kLn2Low, r);
  float p = 1.9875691500e-4F;
  p = multiply_add(p, r, 1.3981999507e-3F);
  p = multiply_add(p, r, 8.3334519073e-3F);
  p = multiply_add(p, r, 4.1665795894e-2F);
  p = multiply_add(p, r, 1.6666665459e-1F);
  p = multiply_add(p, r, 5.0000001201e-1F);
  p = multiply_add(p * r, r, r) + 1.0F;
  const auto half_power =
      std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) + kBias) << kMantissaBits);
  float result = (p + p) * half_power;
  result = x < kLowest ? 0.0F : result;
  return x > kHighest ? HUGE_VALF : result;
}

/// tanh(x) to within 3 units in the last place. Cephes' tanhf: a polynomial below 0.625, else
/// 1 - 2 / (exp(2 |x|) + 1).
[[nodiscard]] inline float tanh_f32(float x) {
  constexpr float kSmall = 0.625F;
  const float magnitude = std::fabs(x);
  const float square = x * x;
  float p = -5.70498872745e-3F;
  p = multiply_add(p, square, 2.06390887954e-2F);
  p = multiply_add(p, square, -5.37397155531e-2F);
  p = multiply_add(p, square, 1.33314422036e-1F);
  p = multiply_add(p, square, -3.33332819422e-1F);
  const float near_zero = multiply_add(p * square, x, x);
  const float far = std::copysign(1.0F - 2.0F / (exp_f32(magnitude + magnitude) + 1.0F), x);
  return magnitude < kSmall ? near_zero : far;
}

/// exp(-x) for a sigmoid 1 / (1 + exp(-x)): finite for every finite x, so that neither the sigmoid
/// nor its complement becomes 0 * infinity. The sigmoid is cut off at 2e-35.
[[nodiscard]] inline float exp_of_negative(float x) {
  constexpr float kHighest = 80.0F;
  const float y = -x;
  return exp_f32(y > kHighest ? kHighest : y);
}

}  // namespace tessera::cpu
