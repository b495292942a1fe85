#include "kernels/quantize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "kernels/cpu/abs_max.h"
#include "kernels/cpu/partition.h"
#include "kernels/cpu/require.h"
#include "kernels/device/cpu/submit.h"
#include "kernels/device/float8.h"

namespace tessera::cpu {
namespace {

constexpr Index kTile = 64;
constexpr std::uint32_t kInfinity = 0x7F800000U;

template <typename T>
void find_abs_max(const AbsMaxArgs& args) {
  *data_as<float>(args.out) = largest_magnitude(data_as<T>(args.x), args.x.count());
}

struct Counts {
  std::int64_t saturated = 0;
  std::int64_t underflowed = 0;
};

struct Scaling {
  bool is_finite;  // else every code is NaN
  float factor;    // 1 where it is not
};

// The codes of elements of a row, `count` of them.
template <typename T, typename Float8>
void encode_row(const T* x, Float8* codes, Index count, const Scaling& scaling) {
  if (!scaling.is_finite) {
    std::fill_n(codes, count, Float8{static_cast<std::uint8_t>(detail::kFloat8Nan)});
    return;
  }
  const float factor = scaling.factor;
#pragma omp simd
  for (Index i = 0; i < count; ++i) {
    codes[i] = detail::encoded<Float8>(as_f32(x[i]) * factor);
  }
}

template <typename T, typename Float8>
Counts count_row(const T* x, const Float8* codes, Index count, float factor) {
  const float largest = detail::decoded<Float8>(detail::Float8Format<Float8>::kLargest);
  Counts counts;
  for (Index i = 0; i < count; ++i) {
    const float value = as_f32(x[i]) * factor;
    const bool fits = std::abs(value) <= largest;  // false for NaN
    counts.saturated += fits ? 0 : 1;
    counts.underflowed += value != 0 && (codes[i].bits & ~detail::kFloat8Sign) == 0 ? 1 : 0;
  }
  return counts;
}

// The columns of a tile as rows of `to`, `stride` elements apart.
template <typename Float8>
void transpose_tile(const Float8* tile, Index height, Index width, Float8* to, Index stride) {
  for (Index c = 0; c < width; ++c) {
    for (Index r = 0; r < height; ++r) {
      to[c * stride + r] = tile[r * kTile + c];
    }
  }
}

std::uint32_t scale_bits(const QuantizeArgs& args, DType dtype) {
  return float8_scale_bits(std::bit_cast<std::uint32_t>(*data_as<float>(args.abs_max)),
                           float8_exponent(dtype));
}

void transpose_codes(const QuantizeArgs& args, DType dtype) {
  const Index rows = args.x.shape[0];
  const Index columns = args.x.shape[1];
  const auto* x = static_cast<const std::uint8_t*>(args.x.data);
  auto* transposed = static_cast<std::uint8_t*>(args.transposed.data);
  *data_as<float>(args.scale) = std::bit_cast<float>(scale_bits(args, dtype));
#pragma omp parallel for schedule(static) if (rows * columns > kParallelElements)
  for (Index tile = 0; tile < (rows + kTile - 1) / kTile; ++tile) {
    const Index first = tile * kTile;
    const Index last = std::min(rows, first + kTile);
    for (Index column = 0; column < columns; ++column) {
      for (Index row = first; row < last; ++row) {
        transposed[column * rows + row] = x[row * columns + column];
      }
    }
  }
}

template <typename T, typename Float8>
void quantize_all(const QuantizeArgs& args) {
  const Index rows = args.x.shape[0];
  const Index columns = args.x.shape[1];
  const std::uint32_t scale = scale_bits(args, detail::DTypeOf<Float8>::kValue);
  const bool is_finite = scale < kInfinity;
  const Scaling scaling = {is_finite,
                           is_finite ? std::bit_cast<float>(float8_factor_bits(scale)) : 1.0F};
  *data_as<float>(args.scale) = std::bit_cast<float>(scale);
  const auto* x = data_as<T>(args.x);
  auto* codes = static_cast<Float8*>(args.codes.data);
  auto* transposed = static_cast<Float8*>(args.transposed.data);
  const bool counts_them = args.counts.data != nullptr;
  std::int64_t saturated = 0;
  std::int64_t underflowed = 0;
#pragma omp parallel for schedule(static) reduction(+ : saturated, underflowed) if (rows * columns > kParallelElements)
  for (Index tile = 0; tile < (rows + kTile - 1) / kTile; ++tile) {
    const Index first = tile * kTile;
    const Index height = std::min(kTile, rows - first);
    std::array<Float8, static_cast<std::size_t>(kTile * kTile)> numbers;  // NOLINT: written first
    for (Index column = 0; column < columns; column += kTile) {
      const Index width = std::min(kTile, columns - column);
      for (Index r = 0; r < height; ++r) {
        const T* row = x + (first + r) * columns + column;
        Float8* of_row = numbers.data() + r * kTile;
        encode_row(row, of_row, width, scaling);
        if (counts_them) {
          const Counts counts = count_row(row, of_row, width, scaling.factor);
          saturated += counts.saturated;
          underflowed += counts.underflowed;
        }
        if (codes != nullptr) {
          std::copy_n(of_row, width, codes + (first + r) * columns + column);
        }
      }
      if (transposed != nullptr) {
        transpose_tile(numbers.data(), height, width, transposed + column * rows + first, rows);
      }
    }
  }
  if (counts_them) {
    auto* counts = data_as<std::int64_t>(args.counts);
    counts[0] += rows * columns;
    counts[1] += saturated;
    counts[2] += underflowed;
  }
}

template <typename T>
void quantize_from(const QuantizeArgs& args, DType dtype) {
  if (dtype == DType::e4m3) {
    quantize_all<T, Float8E4M3>(args);
  } else {
    quantize_all<T, Float8E5M2>(args);
  }
}

}  // namespace

void abs_max(const AbsMaxArgs& args, Stream& stream) {
  require_abs_max(DeviceKind::cpu, args);
  submit(stream, [args] {
    args.x.dtype == DType::f32 ? find_abs_max<float>(args) : find_abs_max<BFloat16>(args);
  });
}

void quantize(const QuantizeArgs& args, Stream& stream) {
  const DType dtype = require_quantize(DeviceKind::cpu, args);
  submit(stream, [args, dtype] {
    if (args.x.dtype == dtype) {
      transpose_codes(args, dtype);
      return;
    }
    args.x.dtype == DType::f32 ? quantize_from<float>(args, dtype)
                               : quantize_from<BFloat16>(args, dtype);
  });
}

}  // namespace tessera::cpu
