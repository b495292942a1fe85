// What the CUDA kernels share: grids for 64-bit counts, accesses of 16 bytes with their scalar
// variants, conversions, and sums over warps and blocks in a fixed order.
//
// Elements are `float` or `BFloat16`; arithmetic is f32. A 16-byte vector is kept as a uint4 and
// unpacked where it is used, so that data in flight take few registers. The scalar variant of an
// access (kAligned false) gives each thread the same elements as the vector one: the order of a
// sum depends on shapes, never on addresses.
#pragma once

#include <cstdint>
#include <limits>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/base/round_up.h"
#include "kernels/cuda/require.h"
#include "kernels/device/cuda/cuda_check.h"
#include "kernels/device/tensor_view.h"

namespace tessera::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

/// Elements of T in a 16-byte access.
template <typename T>
inline constexpr int kVector = static_cast<int>(sizeof(uint4) / sizeof(T));

/// Elements of the accesses in kernels that mix f32 with bf16: 16 and 8 bytes a thread, so that
/// both are contiguous over a warp.
inline constexpr int kQuad = 4;

/// Blocks for `work` items at `per_block` each. Throws ContractError beyond CUDA's 2^31 - 1.
[[nodiscard]] inline unsigned block_count(Index work, Index per_block) {
  const Index blocks = divide_up(work, per_block);
  TESSERA_REQUIRE(blocks <= std::numeric_limits<int>::max(), "too many thread blocks for one grid");
  return static_cast<unsigned>(blocks);
}

/// Rows of a matrix, each cut into items (vectors), over blocks of kRowThreads threads: where a row
/// has few items a block takes several rows. Row-major in a one-dimensional grid.
inline constexpr int kRowThreads = 256;
struct RowGrid {
  unsigned blocks;
  dim3 threads;    // x along the row, y over rows
  unsigned tiles;  // blocks along a row
};
[[nodiscard]] inline RowGrid row_grid(Index rows, Index items) {
  unsigned across = kRowThreads;
  while (across > 1 && static_cast<Index>(across / 2) >= items) {
    across /= 2;
  }
  const unsigned down = kRowThreads / across;
  const unsigned tiles = block_count(items, across);
  return {.blocks = block_count(divide_up(rows, down) * tiles, 1),
          .threads = dim3(across, down),
          .tiles = tiles};
}
/// This thread's row and item, either of which may be beyond the matrix.
struct RowItem {
  Index row;
  Index item;  // tile * blockDim.x + threadIdx.x
  Index tile;
};
[[nodiscard]] __device__ __forceinline__ RowItem row_item(unsigned tiles) {
  const unsigned row_block = blockIdx.x / tiles;
  const unsigned tile = blockIdx.x - row_block * tiles;
  return {.row = static_cast<Index>(row_block) * blockDim.y + threadIdx.y,
          .item = static_cast<Index>(tile) * blockDim.x + threadIdx.x,
          .tile = tile};
}

// ---- devices, and kernels that follow each other -----------------------------------------------

[[nodiscard]] inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  TESSERA_CHECK_CUDA(cudaGetDevice(&device));
  TESSERA_CHECK_CUDA(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}
/// True where there are clusters, and kernels that come before the one before them has ended.
[[nodiscard]] inline bool is_hopper_or_later() {
  constexpr int kHopper = 9;
  return device_attribute(cudaDevAttrComputeCapabilityMajor) >= kHopper;
}

/// Programmatic dependent launch, trigger: the next kernel of the stream, if it is launched so, may
/// start once all blocks of this one have called this. It saves the time between two kernels.
__device__ __forceinline__ void trigger_next_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
/// Programmatic dependent launch, wait: until the kernel before this one has ended and its writes
/// are visible.
__device__ __forceinline__ void wait_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// ---- conversions ------------------------------------------------------------------------------

[[nodiscard]] __device__ __forceinline__ float to_f32(float value) {
  return value;
}
[[nodiscard]] __device__ __forceinline__ float to_f32(BFloat16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16U);
}

/// Rounds to nearest even.
template <typename T>
[[nodiscard]] __device__ __forceinline__ T from_f32(float value);
template <>
__device__ __forceinline__ float from_f32<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ BFloat16 from_f32<BFloat16>(float value) {
  return BFloat16{__bfloat16_as_ushort(__float2bfloat16_rn(value))};
}

/// Two neighbours in one word, `low` at the lower address.
[[nodiscard]] __device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  unsigned word = 0;
  memcpy(&word, &pair, sizeof word);
  return word;
}
[[nodiscard]] __device__ __forceinline__ float low_bf16(unsigned word) {
  return __uint_as_float(word << 16U);
}
[[nodiscard]] __device__ __forceinline__ float high_bf16(unsigned word) {
  return __uint_as_float(word & 0xFFFF0000U);
}

template <typename T>
__device__ __forceinline__ void unpack(const uint4& raw, float (&values)[kVector<T>]) {
  const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == sizeof(float)) {
      values[i] = __uint_as_float(words[i]);
    } else {
      values[2 * i] = low_bf16(words[i]);
      values[2 * i + 1] = high_bf16(words[i]);
    }
  }
}

/// The same as unpack by other instructions: what is recomputed, much later, is not kept until then
/// in twice the registers. (The assembler sees through make_opaque, which the compiler still
/// needs. Where either stands was measured: jobs/bench/results/notes.md.)
template <typename T>
__device__ __forceinline__ void unpack_recomputed(const uint4& raw, float (&values)[kVector<T>]) {
  if constexpr (sizeof(T) == sizeof(float)) {
    unpack<T>(raw, values);
  } else {
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      unsigned low = 0;
      unsigned high = 0;
      asm("prmt.b32 %0, %1, 0, 0x1044;" : "=r"(low) : "r"(words[i]));
      asm("prmt.b32 %0, %1, 0, 0x3244;" : "=r"(high) : "r"(words[i]));
      values[2 * i] = __uint_as_float(low);
      values[2 * i + 1] = __uint_as_float(high);
    }
  }
}

template <typename T>
[[nodiscard]] __device__ __forceinline__ uint4 pack(const float (&values)[kVector<T>]) {
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == sizeof(float)) {
      words[i] = __float_as_uint(values[i]);
    } else {
      words[i] = pack_bf16(values[2 * i], values[2 * i + 1]);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/// Makes `raw` opaque to the compiler, so that it forgets what it has unpacked of it: what is used
/// again much later is then recomputed, where it would else be kept in twice the registers.
__device__ __forceinline__ void make_opaque(uint4& raw) {
  asm volatile("" : "+r"(raw.x), "+r"(raw.y), "+r"(raw.z), "+r"(raw.w));
}

// ---- accesses ---------------------------------------------------------------------------------

/// The bits of one element, and the element of such bits.
[[nodiscard]] __device__ __forceinline__ unsigned element_bits(float value) {
  return __float_as_uint(value);
}
[[nodiscard]] __device__ __forceinline__ unsigned element_bits(BFloat16 value) {
  return value.bits;
}
template <typename T>
[[nodiscard]] __device__ __forceinline__ T element_of(unsigned bits) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return __uint_as_float(bits);
  } else {
    return BFloat16{static_cast<std::uint16_t>(bits)};
  }
}

/// One access of 16 or 8 bytes, in the order in which they are written down: the compiler splits
/// the assignment of a uint4 where it likes, and moves loads to where they are used, one wait each.
[[nodiscard]] __device__ __forceinline__ uint4 load_whole(const void* from) {
  uint4 raw;
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
               : "l"(from)
               : "memory");
  return raw;
}
[[nodiscard]] __device__ __forceinline__ uint2 load_half(const void* from) {
  uint2 raw;
  asm volatile("ld.global.v2.b32 {%0, %1}, [%2];"
               : "=r"(raw.x), "=r"(raw.y)
               : "l"(from)
               : "memory");
  return raw;
}
__device__ __forceinline__ void store_whole(void* to, const uint4& raw) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(to), "r"(raw.x), "r"(raw.y), "r"(raw.z), "r"(raw.w)
               : "memory");
}
__device__ __forceinline__ void store_whole(void* to, const uint2& raw) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" : : "l"(to), "r"(raw.x), "r"(raw.y) : "memory");
}

/// The same for what nobody reads soon: it is the first to leave the cache.
__device__ __forceinline__ void store_streaming(void* to, const uint4& raw) {
  asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(to), "r"(raw.x), "r"(raw.y), "r"(raw.z), "r"(raw.w)
               : "memory");
}

/// Vector `at` of a row of `width` elements; elements beyond the row are 0.
/// Requires with kAligned: the row begins at a multiple of 16 bytes and `width` is one of
/// kVector<T>.
template <typename T, bool kAligned>
[[nodiscard]] __device__ __forceinline__ uint4 load_vector(const T* row, Index at, Index width) {
  const T* from = row + at * kVector<T>;
  if constexpr (kAligned) {
    return load_whole(from);
  } else {
    const Index left = width - at * kVector<T>;
    unsigned words[4] = {};
#pragma unroll
    for (int i = 0; i < kVector<T>; ++i) {
      const unsigned bits = i < left ? element_bits(from[i]) : 0U;
      if constexpr (sizeof(T) == sizeof(float)) {
        words[i] = bits;
      } else {
        words[i / 2] |= bits << (16 * (i % 2));
      }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
}

/// Writes what of vector `at` is within the row.
template <typename T, bool kAligned>
__device__ __forceinline__ void store_vector(T* row, Index at, Index width, const uint4& raw) {
  T* to = row + at * kVector<T>;
  if constexpr (kAligned) {
    store_whole(to, raw);
  } else {
    const Index left = width - at * kVector<T>;
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < kVector<T>; ++i) {
      if (i < left) {
        if constexpr (sizeof(T) == sizeof(float)) {
          to[i] = element_of<T>(words[i]);
        } else {
          to[i] = element_of<T>(words[i / 2] >> (16 * (i % 2)));
        }
      }
    }
  }
}

/// Elements [at, at + 4) of an array of `count`, as f32; 0 beyond it. With kAligned, one access
/// where all four exist. Requires with kAligned: at a multiple of 4, the array at one of 16 bytes.
template <bool kAligned, typename T>
[[nodiscard]] __device__ __forceinline__ float4 load_quad(const T* array, Index at, Index count) {
  if (kAligned && at + kQuad <= count) {
    if constexpr (sizeof(T) == sizeof(float)) {
      const uint4 raw = load_whole(array + at);
      return make_float4(__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z),
                         __uint_as_float(raw.w));
    } else {
      const uint2 raw = load_half(array + at);
      return make_float4(low_bf16(raw.x), high_bf16(raw.x), low_bf16(raw.y), high_bf16(raw.y));
    }
  }
  const T* from = array + at;
  const Index left = count - at;
  return make_float4(left > 0 ? to_f32(from[0]) : 0.0F, left > 1 ? to_f32(from[1]) : 0.0F,
                     left > 2 ? to_f32(from[2]) : 0.0F, left > 3 ? to_f32(from[3]) : 0.0F);
}

/// Writes what of elements [at, at + 4) is within the array, rounded to T.
template <bool kAligned, typename T>
__device__ __forceinline__ void store_quad(T* array, Index at, Index count, const float4& values) {
  if (kAligned && at + kQuad <= count) {
    if constexpr (sizeof(T) == sizeof(float)) {
      store_whole(array + at, make_uint4(__float_as_uint(values.x), __float_as_uint(values.y),
                                         __float_as_uint(values.z), __float_as_uint(values.w)));
    } else {
      store_whole(array + at,
                  make_uint2(pack_bf16(values.x, values.y), pack_bf16(values.z, values.w)));
    }
    return;
  }
  const float elements[kQuad] = {values.x, values.y, values.z, values.w};
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    if (at + i < count) {
      array[at + i] = from_f32<T>(elements[i]);
    }
  }
}

// ---- norms ------------------------------------------------------------------------------------

/// 1 / sqrt(mean square + eps) of a row or head; `share` is 1 over its width.
[[nodiscard]] __device__ __forceinline__ float reciprocal_rms(float sum_of_squares, float share,
                                                              float eps) {
  return rsqrtf(__fmaf_rn(sum_of_squares, share, eps));
}

// ---- sums -------------------------------------------------------------------------------------

/// The sum over each kLanes neighbouring lanes of a warp, a power of two of them, bit-identical in
/// each: a butterfly, so the order is fixed.
template <int kLanes, typename Number>
[[nodiscard]] __device__ __forceinline__ Number lanes_sum(Number value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}
template <typename Number>
[[nodiscard]] __device__ __forceinline__ Number warp_sum(Number value) {
  return lanes_sum<kWarp>(value);
}

/// Sums of kCount numbers over the block, each bit-identical in every thread. `shared` is for this
/// call alone until every thread has left the next barrier: callers in a loop take two in turn.
/// Requires: whole warps, at most 32.
template <int kCount>
struct BlockSums {
  float values[kCount][kWarp];
};
template <int kCount>
__device__ __forceinline__ void block_sum(float (&values)[kCount], BlockSums<kCount>& shared) {
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  const unsigned warps = blockDim.x / kWarp;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float sum = warp_sum(values[i]);
    if (lane == 0) {
      shared.values[i][warp] = sum;
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = warp_sum(lane < warps ? shared.values[i][lane] : 0.0F);
  }
}

}  // namespace tessera::cuda
