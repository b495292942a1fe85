// Tensors as numbers of 8 bits with one scale (kernels/device/float8.h): x = codes * scale, but for
// the rounding of the codes.
//
//   scale = the smallest power of two, 2^-63 or more, with max |x| <= largest number * scale
//
// A power of two costs no accuracy but for values near the smallest number, and every product of a
// code and its scale is exact in f32 and bf16. The maximum does not depend on any order, so the
// scale is bit-identical however the work is divided. A tensor of zeros has codes of 0. One that
// holds an infinity or NaN has the scale NaN, and each code of it is NaN: what is multiplied by it
// is NaN, and the step is skipped. Nothing is saturated otherwise.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/device/tensor_view.h"

namespace tessera {

/// The power of two of the largest number: 448 is 1.75 * 2^8, 57344 is 1.75 * 2^15.
constexpr int float8_exponent(DType dtype) {
  constexpr int kE4M3 = 8;
  constexpr int kE5M2 = 15;
  return dtype == DType::e4m3 ? kE4M3 : kE5M2;
}

/// The scale of a tensor of which `bits` are those of max |x| as f32, for codes whose largest
/// number is 1.75 * 2^exponent; the bits of NaN where max |x| is not finite. On either device.
constexpr std::uint32_t float8_scale_bits(std::uint32_t bits, int exponent) {
  constexpr std::uint32_t kInfinity = 0x7F800000U;
  constexpr std::uint32_t kNan = 0x7FC00000U;
  constexpr std::uint32_t kThreeQuarters = 0x600000U;
  constexpr int kMantissaBits = 23;
  constexpr int kBias = 127;
  constexpr int kLeast = -63;  // the product of two scales is a normal number
  if (bits >= kInfinity) {
    return kNan;
  }
  const int of_largest = static_cast<int>(bits >> kMantissaBits) - kBias +
                         ((bits & ((1U << kMantissaBits) - 1)) > kThreeQuarters ? 1 : 0);
  const int power = of_largest - exponent < kLeast ? kLeast : of_largest - exponent;
  return static_cast<std::uint32_t>(power + kBias) << kMantissaBits;
}

/// The bits of 1 / scale. Requires: the bits of such a scale, not those of NaN.
constexpr std::uint32_t float8_factor_bits(std::uint32_t scale_bits) {
  constexpr std::uint32_t kOneTwice = 2U * (127U << 23U);
  return kOneTwice - scale_bits;
}

struct AbsMaxArgs {
  ConstTensorView x;  // f32 or bf16, any shape
  TensorView out;     // [1] f32, written: max |x|; infinity or NaN where x holds one
};

struct QuantizeArgs {
  ConstTensorView x;        // [N, K] f32 or bf16; or codes, to write the transposed ones alone
  ConstTensorView abs_max;  // [1] f32: of x, as abs_max writes it
  TensorView codes;         // [N, K] e4m3 or e5m2, written; data null: not needed
  TensorView transposed;    // [K, N] of the same type, written; data null: not needed
  TensorView scale;         // [1] f32, written
  TensorView counts;        // [kQuantizeCounts] i64, added to (QuantizeCount); data null for none
};

/// What is counted of a tensor's values.
enum class QuantizeCount : std::uint8_t {
  values,
  saturated,    // infinite or NaN, or beyond the largest number
  underflowed,  // not 0, and its code is
};
inline constexpr Index kQuantizeCounts = 3;

/// Throws ContractError unless the arguments are what the structs say; gives the type of the codes.
void require_abs_max(DeviceKind where, const AbsMaxArgs& args);
[[nodiscard]] DType require_quantize(DeviceKind where, const QuantizeArgs& args);

/// One signature; a definition in kernels/cpu and one in kernels/cuda.
using AbsMaxFn = void(const AbsMaxArgs& args, Stream& stream);
using QuantizeFn = void(const QuantizeArgs& args, Stream& stream);

namespace cpu {
AbsMaxFn abs_max;
QuantizeFn quantize;
}  // namespace cpu
namespace cuda {
AbsMaxFn abs_max;
QuantizeFn quantize;
}  // namespace cuda

}  // namespace tessera
