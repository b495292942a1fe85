// A block quantises a tile of kTileRows x kTileColumns: a thread reads 8 neighbours of 4 rows,
// writes their codes row by row, and turns them into words of 4 codes of a column, which leave
// through shared memory in runs along the columns.
#include <algorithm>

#include <cuda_fp8.h>

#include "kernels/cuda/abs_max.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/quantize.h"

namespace tessera::cuda {
namespace {

constexpr unsigned kInfinityBits = 0x7F800000U;
constexpr unsigned kNanCode = 0x7FU;

// ---- the largest magnitude ----------------------------------------------------------------------

constexpr int kMaxThreads = 512;
constexpr Index kMaxBlocks = 132 * 4;

//   x    [count]  read
//   out  [1]      the bits of a float, 0 before: written
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kMaxThreads)
    largest_magnitude(const T* __restrict__ x, unsigned* __restrict__ out, Index count) {
  __shared__ unsigned of_warps[kMaxThreads / kWarp];
  unsigned largest = 0;
  const Index step = static_cast<Index>(gridDim.x) * kMaxThreads;
  for (Index at = static_cast<Index>(blockIdx.x) * kMaxThreads + threadIdx.x;
       at * kVector<T> < count; at += step) {
    largest = max(largest, vector_max<T>(load_vector<T, kAligned>(x, at, count)));
  }
  largest = warp_max(largest);
  if (threadIdx.x % kWarp == 0) {
    of_warps[threadIdx.x / kWarp] = largest;
  }
  __syncthreads();
  if (threadIdx.x < kWarp) {
    largest = warp_max(threadIdx.x < kMaxThreads / kWarp ? of_warps[threadIdx.x] : 0U);
    if (threadIdx.x == 0) {
      atomicMax(out, largest);
    }
  }
}

// ---- codes --------------------------------------------------------------------------------------

constexpr int kTileRows = 128;
constexpr int kTileColumns = 64;
constexpr int kThreadRows = 4;     // codes of a word
constexpr int kThreadColumns = 8;  // of a row, 8 bytes of codes
constexpr int kThreads = kTileRows / kThreadRows * (kTileColumns / kThreadColumns);
constexpr int kWordsOfColumn = kTileRows / kThreadRows;
constexpr int kPitch = kWordsOfColumn + 1;  // words, so that columns begin in different banks

struct Tile {
  Index row;  // of this thread's 4 rows the first
  Index column;
};

struct Matrix {
  Index rows;
  Index columns;
  unsigned tiles;  // along a row
};

/// 8 neighbours of a row as f32; 0 beyond the matrix.
template <typename T, bool kAligned>
__device__ __forceinline__ void load_values(const T* __restrict__ x, Index row, Index column,
                                            const Matrix& m, float (&values)[kThreadColumns]) {
  constexpr int kVectors = kThreadColumns / kVector<T>;
  const bool is_within = row < m.rows && column < m.columns;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const Index left = m.columns - column - v * kVector<T>;
    const uint4 raw = is_within && left > 0 ? load_vector<T, kAligned>(x + row * m.columns + column,
                                                                       v, m.columns - column)
                                            : uint4{};
    float part[kVector<T>];
    unpack<T>(raw, part);
#pragma unroll
    for (int i = 0; i < kVector<T>; ++i) {
      values[v * kVector<T> + i] = part[i];
    }
  }
}

/// Two codes in the lower half of a word. Rounds to nearest even; what is too large becomes the
/// largest number.
template <__nv_fp8_interpretation_t kFormat>
[[nodiscard]] __device__ __forceinline__ unsigned encode_pair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, kFormat);
}

struct Counts {
  unsigned saturated;
  unsigned underflowed;
};

template <__nv_fp8_interpretation_t kFormat>
__device__ __forceinline__ void count(float value, unsigned code, Counts& counts) {
  constexpr float kLargest = kFormat == __NV_E4M3 ? 448.0F : 57344.0F;
  counts.saturated += fabsf(value) <= kLargest ? 0U : 1U;  // NaN is not
  counts.underflowed += value != 0.0F && (code & 0x7FU) == 0 ? 1U : 0U;
}

//   x           [rows, columns]  read
//   codes       [rows, columns]  written, unless null
//   transposed  [columns, rows]  written, unless null
//   scale       [1]              written by the first block
//   counts      [3]              added to, unless null
template <typename T, __nv_fp8_interpretation_t kFormat, bool kAligned, bool kCounts>
__global__ void __launch_bounds__(kThreads)
    quantize_tiles(const T* __restrict__ x, const unsigned* __restrict__ abs_max,
                   std::uint8_t* __restrict__ codes, std::uint8_t* __restrict__ transposed,
                   unsigned* __restrict__ scale, unsigned long long* __restrict__ counts,
                   Matrix m) {
  __shared__ unsigned words[kTileColumns * kPitch];
  const unsigned scale_bits = float8_scale_bits(
      *abs_max, float8_exponent(kFormat == __NV_E4M3 ? DType::e4m3 : DType::e5m2));
  const bool is_finite = scale_bits < kInfinityBits;
  const float factor = is_finite ? __uint_as_float(float8_factor_bits(scale_bits)) : 1.0F;
  const unsigned row_tile = blockIdx.x / m.tiles;
  const Index first_row = static_cast<Index>(row_tile) * kTileRows;
  const Index first_column = static_cast<Index>(blockIdx.x - row_tile * m.tiles) * kTileColumns;
  constexpr int kAcross = kTileColumns / kThreadColumns;
  const int across = static_cast<int>(threadIdx.x) % kAcross;
  const int down = static_cast<int>(threadIdx.x) / kAcross;
  const Tile at = {.row = first_row + down * kThreadRows,
                   .column = first_column + across * kThreadColumns};
  Counts counted = {};
  unsigned rows[kThreadRows][2];  // 8 codes each
  float values[kThreadRows][kThreadColumns];
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    load_values<T, kAligned>(x, at.row + r, at.column, m, values[r]);
  }
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* v = &values[r][half * 4];
      unsigned word = encode_pair<kFormat>(v[0] * factor, v[1] * factor) |
                      encode_pair<kFormat>(v[2] * factor, v[3] * factor) << 16U;
      word = is_finite ? word : kNanCode * 0x01010101U;
      rows[r][half] = word;
      if constexpr (kCounts) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          count<kFormat>(v[i] * factor, word >> (8 * i), counted);
        }
      }
    }
    const Index row = at.row + r;
    if (codes != nullptr && row < m.rows && at.column < m.columns) {
      std::uint8_t* to = codes + row * m.columns + at.column;
      if constexpr (kAligned) {
        store_whole(to, make_uint2(rows[r][0], rows[r][1]));
      } else {
#pragma unroll
        for (int i = 0; i < kThreadColumns; ++i) {
          if (at.column + i < m.columns) {
            to[i] = static_cast<std::uint8_t>(rows[r][i / 4] >> (8 * (i % 4)));
          }
        }
      }
    }
  }
  if (transposed != nullptr) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // bytes of 4 rows and 4 columns, as words of a column
      const unsigned low01 = __byte_perm(rows[0][half], rows[1][half], 0x5140);
      const unsigned low23 = __byte_perm(rows[2][half], rows[3][half], 0x5140);
      const unsigned high01 = __byte_perm(rows[0][half], rows[1][half], 0x7362);
      const unsigned high23 = __byte_perm(rows[2][half], rows[3][half], 0x7362);
      unsigned* column = words + (across * kThreadColumns + half * 4) * kPitch + down;
      column[0] = __byte_perm(low01, low23, 0x5410);
      column[kPitch] = __byte_perm(low01, low23, 0x7632);
      column[2 * kPitch] = __byte_perm(high01, high23, 0x5410);
      column[3 * kPitch] = __byte_perm(high01, high23, 0x7632);
    }
    __syncthreads();
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const Index row = first_row + lane * kThreadRows;
    for (int c = static_cast<int>(threadIdx.x) / kWarp; c < kTileColumns; c += kThreads / kWarp) {
      const Index column = first_column + c;
      if (column < m.columns && row < m.rows) {
        const unsigned word = words[c * kPitch + lane];
        std::uint8_t* to = transposed + column * m.rows + row;
        if constexpr (kAligned) {
          *reinterpret_cast<unsigned*>(to) = word;
        } else {
#pragma unroll
          for (int i = 0; i < kThreadRows; ++i) {
            if (row + i < m.rows) {
              to[i] = static_cast<std::uint8_t>(word >> (8 * i));
            }
          }
        }
      }
    }
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    *scale = scale_bits;
    if constexpr (kCounts) {
      atomicAdd(&counts[0], static_cast<unsigned long long>(m.rows * m.columns));
    }
  }
  if constexpr (kCounts) {
    const unsigned saturated = warp_sum(counted.saturated);
    const unsigned underflowed = warp_sum(counted.underflowed);
    if (threadIdx.x % kWarp == 0 && (saturated | underflowed) != 0) {
      atomicAdd(&counts[1], static_cast<unsigned long long>(saturated));
      atomicAdd(&counts[2], static_cast<unsigned long long>(underflowed));
    }
  }
}

// ---- codes transposed ---------------------------------------------------------------------------

constexpr int kSquare = 64;       // rows and columns of a tile
constexpr int kSquareWords = 16;  // of 4 codes, of a row or column of it

//   x           [rows, columns]  read
//   transposed  [columns, rows]  written
//   scale       [1]              written by the first block
// Aligned: rows and columns are multiples of 4, and so are the addresses. A thread turns 4 x 4 codes.
template <bool kAligned>
__global__ void __launch_bounds__(kSquareWords* kSquareWords)
    transpose_tiles(const std::uint8_t* __restrict__ x, const unsigned* __restrict__ abs_max,
                    std::uint8_t* __restrict__ transposed, unsigned* __restrict__ scale,
                    int exponent, Matrix m) {
  __shared__ unsigned words[kSquare * (kSquareWords + 1)];
  const unsigned row_tile = blockIdx.x / m.tiles;
  const Index first_row = static_cast<Index>(row_tile) * kSquare;
  const Index first_column = static_cast<Index>(blockIdx.x - row_tile * m.tiles) * kSquare;
  const int across = static_cast<int>(threadIdx.x) % kSquareWords;
  const int down = static_cast<int>(threadIdx.x) / kSquareWords;
  unsigned rows[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const Index row = first_row + down * 4 + r;
    const Index column = first_column + across * 4;
    rows[r] = 0;
    if (row < m.rows && column < m.columns) {
      const std::uint8_t* from = x + row * m.columns + column;
      if constexpr (kAligned) {
        rows[r] = *reinterpret_cast<const unsigned*>(from);
      } else {
        for (int i = 0; i < 4 && column + i < m.columns; ++i) {
          rows[r] |= static_cast<unsigned>(from[i]) << (8 * i);
        }
      }
    }
  }
  const unsigned low01 = __byte_perm(rows[0], rows[1], 0x5140);
  const unsigned low23 = __byte_perm(rows[2], rows[3], 0x5140);
  const unsigned high01 = __byte_perm(rows[0], rows[1], 0x7362);
  const unsigned high23 = __byte_perm(rows[2], rows[3], 0x7362);
  unsigned* column_words = words + across * 4 * (kSquareWords + 1) + down;
  column_words[0] = __byte_perm(low01, low23, 0x5410);
  column_words[kSquareWords + 1] = __byte_perm(low01, low23, 0x7632);
  column_words[2 * (kSquareWords + 1)] = __byte_perm(high01, high23, 0x5410);
  column_words[3 * (kSquareWords + 1)] = __byte_perm(high01, high23, 0x7632);
  __syncthreads();
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const Index column = first_column + down * 4 + r;
    const Index row = first_row + across * 4;
    if (column < m.columns && row < m.rows) {
      const unsigned word = words[(down * 4 + r) * (kSquareWords + 1) + across];
      std::uint8_t* to = transposed + column * m.rows + row;
      if constexpr (kAligned) {
        *reinterpret_cast<unsigned*>(to) = word;
      } else {
        for (int i = 0; i < 4 && row + i < m.rows; ++i) {
          to[i] = static_cast<std::uint8_t>(word >> (8 * i));
        }
      }
    }
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    *scale = float8_scale_bits(*abs_max, exponent);
  }
}

void launch_transpose(const QuantizeArgs& args, DType dtype, Stream& stream) {
  const Index rows = args.x.shape[0];
  const Index columns = args.x.shape[1];
  const unsigned tiles = block_count(columns, kSquare);
  const auto launch = [&](auto kernel) {
    kernel<<<block_count(divide_up(rows, kSquare) * tiles, 1), kSquareWords * kSquareWords, 0,
             stream.cuda_handle()>>>(
        static_cast<const std::uint8_t*>(args.x.data),
        static_cast<const unsigned*>(args.abs_max.data),
        static_cast<std::uint8_t*>(args.transposed.data), static_cast<unsigned*>(args.scale.data),
        float8_exponent(dtype), Matrix{.rows = rows, .columns = columns, .tiles = tiles});
  };
  const bool is_aligned = rows % 4 == 0 && columns % 4 == 0 && is_vector_aligned(args.x.data) &&
                          is_vector_aligned(args.transposed.data);
  is_aligned ? launch(transpose_tiles<true>) : launch(transpose_tiles<false>);
}

static_assert(static_cast<int>(QuantizeCount::saturated) == 1 &&
              static_cast<int>(QuantizeCount::underflowed) == 2 && kWordsOfColumn == kWarp);

template <typename T, __nv_fp8_interpretation_t kFormat>
void launch_quantize(const QuantizeArgs& args, Stream& stream) {
  const Index rows = args.x.shape[0];
  const Index columns = args.x.shape[1];
  const unsigned tiles = block_count(columns, kTileColumns);
  const Matrix matrix = {.rows = rows, .columns = columns, .tiles = tiles};
  const unsigned blocks = block_count(divide_up(rows, kTileRows) * tiles, 1);
  const auto launch = [&](auto kernel) {
    kernel<<<blocks, kThreads, 0, stream.cuda_handle()>>>(
        data_as<T>(args.x), static_cast<const unsigned*>(args.abs_max.data),
        static_cast<std::uint8_t*>(args.codes.data),
        static_cast<std::uint8_t*>(args.transposed.data), static_cast<unsigned*>(args.scale.data),
        static_cast<unsigned long long*>(args.counts.data), matrix);
  };
  const bool is_aligned = columns % kThreadColumns == 0 && rows % kThreadRows == 0 &&
                          is_vector_aligned(args.x.data) && is_vector_aligned(args.codes.data) &&
                          is_vector_aligned(args.transposed.data);
  if (args.counts.data != nullptr) {
    is_aligned ? launch(quantize_tiles<T, kFormat, true, true>)
               : launch(quantize_tiles<T, kFormat, false, true>);
  } else {
    is_aligned ? launch(quantize_tiles<T, kFormat, true, false>)
               : launch(quantize_tiles<T, kFormat, false, false>);
  }
}

}  // namespace

void abs_max(const AbsMaxArgs& args, Stream& stream) {
  require_abs_max(DeviceKind::cuda, args);
  const Index count = args.x.count();
  begin_abs_max(args.out, stream);
  if (count == 0) {
    return;
  }
  with_element_type(args.x.dtype, "x", [&](auto zero) {
    using T = decltype(zero);
    const auto blocks = static_cast<unsigned>(
        std::min(kMaxBlocks, divide_up(divide_up(count, kVector<T>), kMaxThreads)));
    const auto launch = [&](auto kernel) {
      kernel<<<blocks, kMaxThreads, 0, stream.cuda_handle()>>>(
          data_as<T>(args.x), static_cast<unsigned*>(args.out.data), count);
    };
    if (is_vector_aligned(args.x.data) && count % kVector<T> == 0) {
      launch(largest_magnitude<T, true>);
    } else {
      launch(largest_magnitude<T, false>);
    }
  });
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

void quantize(const QuantizeArgs& args, Stream& stream) {
  const DType dtype = require_quantize(DeviceKind::cuda, args);
  if (args.x.count() == 0) {
    return;
  }
  if (args.x.dtype == dtype) {
    launch_transpose(args, dtype, stream);
    TESSERA_CHECK_CUDA(cudaGetLastError());
    return;
  }
  with_element_type(args.x.dtype, "x", [&](auto zero) {
    using T = decltype(zero);
    if (dtype == DType::e4m3) {
      launch_quantize<T, __NV_E4M3>(args, stream);
    } else {
      launch_quantize<T, __NV_E5M2>(args, stream);
    }
  });
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

}  // namespace tessera::cuda
