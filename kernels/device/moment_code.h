// An optimizer's moments in fewer bits than f32, with stochastic rounding: bf16, and 8 bits in
// blocks of 256 elements that share a scale.
//
//   bf16            the upper half of an f32
//   8 bits, signed  sign, 4 bits of exponent, 3 of mantissa, for the first moment
//   8 bits          5 bits of exponent, 3 of mantissa, for the second moment, which is not negative
//
// A block's scale s is the smallest power of two with which its largest magnitude is at most the
// largest code, 1.875 s; so nothing saturates. An element of code c = (E, M) is
//
//   E > 0:  2^(E - top) (1 + M/8) s        E = 0:  2^(1 - top) (M/8) s       top = 15, or 31
//
// which is a bf16 number too, down to 2^-17 of the scale (first moment) and 2^-33 (second). What is
// between two codes becomes the upper one with the probability that its distance from the lower one
// is of theirs: the mean is the number itself, so that small changes add up over many updates. A
// second moment that is not zero never becomes zero: the update would divide by eps alone.
//
// Random bits are a function of (seed, update, unit, element of the unit), not of ranks, pages or
// residency. Integers alone, but for exact products: bit-identical on host and device.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "kernels/base/random.h"
#include "kernels/base/types.h"
#include "kernels/device/master_code.h"

namespace tessera {

/// Elements that share a scale.
inline constexpr Index kMomentBlock = 256;
/// Elements whose random bits come from one call of philox.
inline constexpr Index kRandomQuad = 4;

/// What the random bits of an update are a function of.
struct RoundingKey {
  std::uint64_t seed = 0;
  std::uint64_t update = 0;  // below 2^40
  std::uint64_t unit = 0;    // below 2^24
};

/// Random bits of elements 4 `quad` to 4 `quad` + 3 of the key's unit: the lower half of a word for
/// the first moment, the upper half for the second.
[[nodiscard]] constexpr std::array<std::uint32_t, kRandomQuad> random_quad(const RoundingKey& key,
                                                                           std::uint64_t quad) {
  constexpr unsigned kUpdateBits = 40;
  return philox(key.seed, key.unit << kUpdateBits | key.update, quad);
}
/// In place of random bits: rounds to the nearest, for numbers that are loaded.
inline constexpr std::uint32_t kNearest = 0x80008000U;

namespace detail {

inline constexpr unsigned kMantissaBits = 23;
inline constexpr std::uint32_t kMantissa = 0x7FFFFFU;
inline constexpr std::uint32_t kHiddenBit = 0x800000U;
inline constexpr unsigned kCodeMantissa = 3;                     // bits
inline constexpr unsigned kCut = kMantissaBits - kCodeMantissa;  // bits that a code has not
inline constexpr unsigned kRandomBits = 16;
inline constexpr std::uint32_t kLeastScale =
    37;  // exponent field: 2^-90, so that no code is subnormal
inline constexpr std::uint32_t kLargestScale = 254;

// A magnitude's code; `scale` are the scale's bits.
template <unsigned kTop>
constexpr std::uint32_t magnitude_code(std::uint32_t magnitude, std::uint32_t scale,
                                       std::uint32_t random) {
  constexpr std::uint32_t kLargest = (kTop << kCodeMantissa) | ((1U << kCodeMantissa) - 1);
  const auto field = static_cast<std::int32_t>(magnitude >> kMantissaBits);
  if (scale == 0 || scale >= kInfinityBits || field == 0) {
    return 0;
  }
  const std::int32_t exponent =
      field - static_cast<std::int32_t>(scale >> kMantissaBits) + static_cast<std::int32_t>(kTop);
  std::uint32_t exact = 0;  // the code and kCut bits behind it
  if (exponent > 0) {
    exact = (static_cast<std::uint32_t>(exponent) << kMantissaBits) | (magnitude & kMantissa);
  } else if (exponent > -static_cast<std::int32_t>(kMantissaBits)) {
    exact = ((magnitude & kMantissa) | kHiddenBit) >> static_cast<unsigned>(1 - exponent);
  }
  const std::uint32_t code = (exact + (random << (kCut - kRandomBits))) >> kCut;
  return code < kLargest ? code : kLargest;
}

template <unsigned kTop>
constexpr float magnitude_of(std::uint32_t code, std::uint32_t scale) {
  const std::uint32_t exponent = code >> kCodeMantissa;
  const std::uint32_t field = scale >> kMantissaBits;
  const std::uint32_t mantissa = code & ((1U << kCodeMantissa) - 1);
  if (scale == 0) {
    return 0.0F;
  }
  if (exponent == 0 || scale >= kInfinityBits) {
    // 2^(1 - top - 3) of the scale; of a NaN a NaN
    constexpr std::uint32_t kStep = (127U + 1U - kTop - kCodeMantissa) << kMantissaBits;
    return static_cast<float>(mantissa) *
           (std::bit_cast<float>(kStep) * std::bit_cast<float>(scale));
  }
  return std::bit_cast<float>(((field + exponent - kTop) << kMantissaBits) | (mantissa << kCut));
}

}  // namespace detail

/// The bits of the scale of a block whose largest magnitude has the bits `largest`: 0 for a block of
/// zeros, a NaN for one that is not finite.
[[nodiscard]] constexpr std::uint32_t block_scale(std::uint32_t largest) {
  if (largest >= detail::kInfinityBits) {
    return detail::kParamNan << detail::kRandomBits;
  }
  if (largest == 0) {
    return 0;
  }
  // beyond the largest mantissa of a code the next power of two
  const std::uint32_t field = (largest + (1U << detail::kCut) - 1) >> detail::kMantissaBits;
  const std::uint32_t bounded = field < detail::kLeastScale ? detail::kLeastScale : field;
  return (bounded < detail::kLargestScale ? bounded : detail::kLargestScale)
         << detail::kMantissaBits;
}

/// The code of a first moment with these bits in a block of this scale, and its value.
/// `random`: 16 bits.
[[nodiscard]] constexpr std::uint8_t signed_code(std::uint32_t bits, std::uint32_t scale,
                                                 std::uint32_t random) {
  constexpr unsigned kTop = 15;
  constexpr unsigned kSignShift = 24;
  const std::uint32_t sign = (bits & ~detail::kMagnitude) >> kSignShift;
  return static_cast<std::uint8_t>(
      sign | detail::magnitude_code<kTop>(bits & detail::kMagnitude, scale, random));
}
[[nodiscard]] constexpr float signed_number(std::uint8_t code, std::uint32_t scale) {
  constexpr unsigned kTop = 15;
  constexpr std::uint32_t kSign = 0x80U;
  const float magnitude = detail::magnitude_of<kTop>(code & (kSign - 1), scale);
  return (code & kSign) == 0 ? magnitude : -magnitude;
}

/// The same of a second moment: no number above zero has code 0.
[[nodiscard]] constexpr std::uint8_t unsigned_code(std::uint32_t bits, std::uint32_t scale,
                                                   std::uint32_t random) {
  constexpr unsigned kTop = 31;
  const std::uint32_t code = detail::magnitude_code<kTop>(bits & detail::kMagnitude, scale, random);
  return static_cast<std::uint8_t>(code == 0 && bits != 0 && scale < detail::kInfinityBits ? 1
                                                                                           : code);
}
[[nodiscard]] constexpr float unsigned_number(std::uint8_t code, std::uint32_t scale) {
  constexpr unsigned kTop = 31;
  return detail::magnitude_of<kTop>(code, scale);
}

/// A first moment rounded to bf16; not finite ones stay so.
[[nodiscard]] constexpr std::uint16_t signed_bf16(std::uint32_t bits, std::uint32_t random) {
  constexpr std::uint32_t kQuiet = 0x400000U;
  const std::uint32_t magnitude = bits & detail::kMagnitude;
  if (magnitude >= detail::kInfinityBits) {
    return static_cast<std::uint16_t>((magnitude == detail::kInfinityBits ? bits : bits | kQuiet) >>
                                      detail::kRandomBits);
  }
  return static_cast<std::uint16_t>((bits + random) >> detail::kRandomBits);
}
/// The same of a second moment: none above zero becomes zero.
[[nodiscard]] constexpr std::uint16_t unsigned_bf16(std::uint32_t bits, std::uint32_t random) {
  const std::uint16_t rounded = signed_bf16(bits, random);
  return rounded == 0 && bits != 0 ? std::uint16_t{1} : rounded;
}

}  // namespace tessera
