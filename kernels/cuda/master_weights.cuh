// Parameters as the optimizers' kernels write them (kernels/device/master_code.h).
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/device/master_code.h"

namespace tessera::cuda {

/// Two parameters in one word, that of `low` at the lower address.
[[nodiscard]] __device__ __forceinline__ unsigned pack_params(float low, float high) {
  return param_bits(__float_as_uint(low)) |
         (static_cast<unsigned>(param_bits(__float_as_uint(high))) << 16U);
}

template <typename Param>
[[nodiscard]] __device__ __forceinline__ Param param_from(float master) {
  if constexpr (sizeof(Param) == sizeof(float)) {
    return master;
  } else {
    return BFloat16{param_bits(__float_as_uint(master))};
  }
}

/// store_quad of parameters: rounded half away from zero.
template <bool kAligned, typename Param>
__device__ __forceinline__ void store_params(Param* param, Index at, Index count,
                                             const float4& master) {
  if (kAligned && at + kQuad <= count) {
    if constexpr (sizeof(Param) == sizeof(float)) {
      store_quad<kAligned>(param, at, count, master);
    } else {
      store_whole(param + at,
                  make_uint2(pack_params(master.x, master.y), pack_params(master.z, master.w)));
    }
    return;
  }
  const float elements[kQuad] = {master.x, master.y, master.z, master.w};
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    if (at + i < count) {
      param[at + i] = param_from<Param>(elements[i]);
    }
  }
}

}  // namespace tessera::cuda
