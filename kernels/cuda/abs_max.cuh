// The largest magnitude of what a kernel writes, for those that report it (abs_max of their
// arguments). Magnitudes are compared as integers, among which infinity and NaN are the largest:
// no order of the blocks changes the result.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace tessera::cuda {

[[nodiscard]] __device__ __forceinline__ unsigned warp_max(unsigned value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = max(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

/// The bits, as f32, of max |x| of a vector.
template <typename T>
[[nodiscard]] __device__ __forceinline__ unsigned vector_max(const uint4& raw) {
  const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == sizeof(float)) {
      largest = max(largest, words[i] & 0x7FFFFFFFU);
    } else {
      largest = __vmaxu2(largest, words[i] & 0x7FFF7FFFU);
    }
  }
  if constexpr (sizeof(T) != sizeof(float)) {
    largest = max(largest & 0xFFFF0000U, largest << 16U);
  }
  return largest;
}

/// Raises `out`, the bits of a float, to the largest of a warp's bits. Most warps only read it.
/// Requires: whole warps.
__device__ __forceinline__ void report_max(unsigned largest, unsigned* out) {
  largest = warp_max(largest);
  if (threadIdx.x % kWarp == 0 && largest > *static_cast<volatile unsigned*>(out)) {
    atomicMax(out, largest);
  }
}

/// Queues the 0 from which `report_max` rises. Nothing where data is null.
inline void begin_abs_max(const TensorView& out, Stream& stream) {
  if (out.data != nullptr) {
    TESSERA_CHECK_CUDA(cudaMemsetAsync(out.data, 0, sizeof(float), stream.cuda_handle()));
  }
}

}  // namespace tessera::cuda
