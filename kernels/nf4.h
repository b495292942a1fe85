// Tensors as codes of 4 bits (NF4; QLoRA, arXiv:2305.14314, section 3 and appendix E), bit for bit
// as bitsandbytes makes them, so that files of either are read by the other:
//
//   x      = value[code] * absmax               of a block of 64 consecutive elements
//   absmax = map[scale code] * scale + mean     of a block of 256 consecutive absmax
//
// value[code] is the nearest of kNf4Values to x * (1 / absmax), the lower one of two that are as
// near; the scale code names the nearest of kNf4ScaleMap to (absmax - mean) * (1 / scale), where
// scale is the largest |absmax - mean| of its block. `mean` is that of all absmax of the tensor, so
// a tensor is quantised as a whole, whatever is stored in shards later. (bitsandbytes on a CPU takes
// scale codes from a table of 65,536 steps, which now and then names a neighbour.)
//
// Widening is two multiplications and a sum, each rounded to f32 by itself, and one rounding to
// bf16 to nearest even: bit-identical on the CPU and on GPUs.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "kernels/base/round_up.h"
#include "kernels/device/tensor_view.h"

namespace tessera {

/// Elements that share an absmax, and absmax that share a scale.
inline constexpr Index kNf4Block = 64;
inline constexpr Index kNf4ScaleBlock = 256;

/// What codes 0 to 15 stand for, ascending.
inline constexpr std::array<float, 16> kNf4Values = {-1.0F,
                                                     -0.6961928009986877F,
                                                     -0.5250730514526367F,
                                                     -0.39491748809814453F,
                                                     -0.28444138169288635F,
                                                     -0.18477343022823334F,
                                                     -0.09105003625154495F,
                                                     0.0F,
                                                     0.07958029955625534F,
                                                     0.16093020141124725F,
                                                     0.24611230194568634F,
                                                     0.33791524171829224F,
                                                     0.44070982933044434F,
                                                     0.5626170039176941F,
                                                     0.7229568362236023F,
                                                     1.0F};

namespace detail {

// A decade [0.1, 1] 10^(d - 6), d = 0 ... 6, has 2^d numbers of either sign: the middles of as many
// equal parts. Beside them 0 and 1. Rounded as torch.linspace does, which has the borders of the
// upper half from above: bit-identical to bitsandbytes' map.
constexpr float nf4_border(int part, int parts) {
  constexpr float kFirst = 0.1F;
  const auto step = static_cast<double>((1.0F - kFirst) / static_cast<float>(parts));
  return static_cast<float>(part < (parts + 1) / 2 ? static_cast<double>(kFirst) + step * part
                                                   : 1.0 - step * (parts - part));
}

constexpr std::array<float, 256> make_nf4_scale_map() {
  constexpr std::size_t kZero = 127;  // the place of 0
  constexpr std::array<float, 7> kDecades = {1e-6F, 1e-5F, 1e-4F, 1e-3F, 1e-2F, 1e-1F, 1.0F};
  std::array<float, 256> map{};
  std::size_t magnitude = 0;
  int parts = 1;
  for (const float decade : kDecades) {
    for (int part = 0; part < parts; ++part) {
      ++magnitude;
      const float middle = (nf4_border(part, parts) + nf4_border(part + 1, parts)) / 2.0F;
      map[kZero + magnitude] = decade * middle;
      map[kZero - magnitude] = -map[kZero + magnitude];
    }
    parts *= 2;
  }
  map.back() = 1.0F;
  return map;
}

}  // namespace detail

/// What scale codes 0 to 255 stand for, ascending: bitsandbytes' signed dynamic map.
inline constexpr std::array<float, 256> kNf4ScaleMap = detail::make_nf4_scale_map();

/// A packed tensor of n elements is one array of bytes. Offsets of its parts, each a multiple of 16
/// as the whole is; what is between them is 0.
struct Nf4Parts {
  Index codes;         // u8 [ceil(n / 2)]: two a byte, the first in the upper half; the last byte
                       // of an odd n has the code of 0 in the lower half
  Index scale_codes;   // u8 [ceil(n / 64)]
  Index scale_scales;  // f32 [ceil(n / 64 / 256)]
  Index mean;          // f32 [1]
  Index bytes;         // of all
};

/// Blocks of a tensor of n elements, and blocks of their absmax.
constexpr Index nf4_blocks(Index n) {
  return divide_up(n, kNf4Block);
}
constexpr Index nf4_scale_blocks(Index n) {
  return divide_up(nf4_blocks(n), kNf4ScaleBlock);
}

constexpr Nf4Parts nf4_parts(Index n) {
  constexpr Index kAlignment = 16;
  const Index scale_codes = round_up(divide_up(n, 2), kAlignment);
  const Index scale_scales = scale_codes + round_up(nf4_blocks(n), kAlignment);
  const Index mean =
      scale_scales + round_up(nf4_scale_blocks(n) * Index{sizeof(float)}, kAlignment);
  return {.codes = 0,
          .scale_codes = scale_codes,
          .scale_scales = scale_scales,
          .mean = mean,
          .bytes = mean + kAlignment};
}

/// Quantises a tensor on the host. The result does not depend on `threads`, the number of threads
/// that share the work.
///
///   values  [n], read
///   packed  [nf4_parts(n).bytes], written, at a multiple of 16 bytes
///
/// Throws FormatError with `name`, the tensor's, where a value is not finite.
void quantize_nf4(std::string_view name, std::span<const float> values, std::span<std::byte> packed,
                  Index threads);

struct WidenNf4Args {
  ConstTensorView packed;  // [nf4_parts(n).bytes] u8, at a multiple of 16 bytes
  TensorView out;          // [n] f32 or bf16, any shape, written
};

/// Throws ContractError unless the arguments are what the struct says.
void require_widen_nf4(DeviceKind where, const WidenNf4Args& args);

/// One signature; a definition in kernels/cpu and one in kernels/cuda.
using WidenNf4Fn = void(const WidenNf4Args& args, Stream& stream);

namespace cpu {
WidenNf4Fn widen_nf4;
}
namespace cuda {
WidenNf4Fn widen_nf4;
}

}  // namespace tessera
