// Master weights and parameters as the optimizers' kernels read and write them
// (kernels/device/master_code.h).
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/device/master_code.h"

namespace tessera::cuda {

/// Throws ContractError unless `param` is what an optimizer's kernel writes: f32 of f32 values, or
/// bf16. (f32 that holds values of bf16 is the CPU's.)
inline void require_params(const TensorView& param, DType values, Index count) {
  TESSERA_REQUIRE(param.dtype == DType::bf16 || values == DType::f32,
                  "parameters of f32 that hold values of bf16 are for the CPU");
  require_tensor(param, param.dtype, count, "param");
}

/// The same, and `master` is f32, or u16 beside a param of bf16.
inline void require_weights(const TensorView& master, const TensorView& param, DType values,
                            Index count) {
  require_params(param, values, count);
  TESSERA_REQUIRE(master.dtype != DType::u16 || param.dtype == DType::bf16,
                  "remainders beside parameters of bf16");
  require_tensor(master, master.dtype == DType::u16 ? DType::u16 : DType::f32, count, "master");
}

/// Calls `body(master, param)` with pointers of the types that require_weights accepted.
template <typename Body>
void with_weight_types(const TensorView& master, const TensorView& param, const Body& body) {
  if (master.dtype == DType::u16) {
    body(data_as<std::uint16_t>(master), data_as<BFloat16>(param));
  } else if (param.dtype == DType::bf16) {
    body(data_as<float>(master), data_as<BFloat16>(param));
  } else {
    body(data_as<float>(master), data_as<float>(param));
  }
}

/// Two parameters in one word, that of `low` at the lower address.
[[nodiscard]] __device__ __forceinline__ unsigned pack_params(float low, float high) {
  return param_bits(__float_as_uint(low)) |
         (static_cast<unsigned>(param_bits(__float_as_uint(high))) << 16U);
}

/// The remainders beside them.
[[nodiscard]] __device__ __forceinline__ unsigned pack_remainders(float low, float high) {
  return remainder_bits(__float_as_uint(low)) |
         (static_cast<unsigned>(remainder_bits(__float_as_uint(high))) << 16U);
}
/// The master weights of such pairs.
[[nodiscard]] __device__ __forceinline__ float low_master(unsigned params, unsigned remainders) {
  return __uint_as_float(
      master_bits(static_cast<std::uint16_t>(params), static_cast<std::uint16_t>(remainders)));
}
[[nodiscard]] __device__ __forceinline__ float high_master(unsigned params, unsigned remainders) {
  return __uint_as_float(master_bits(static_cast<std::uint16_t>(params >> 16U),
                                     static_cast<std::uint16_t>(remainders >> 16U)));
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

/// load_quad of master weights: `param` is not read.
template <bool kAligned, typename Param>
[[nodiscard]] __device__ __forceinline__ float4 load_masters(const float* master,
                                                             const Param* /*param*/, Index at,
                                                             Index count) {
  return load_quad<kAligned>(master, at, count);
}
/// The same from remainders and the parameters beside them.
template <bool kAligned>
[[nodiscard]] __device__ __forceinline__ float4 load_masters(const std::uint16_t* remainder,
                                                             const BFloat16* param, Index at,
                                                             Index count) {
  if (kAligned && at + kQuad <= count) {
    const uint2 params = load_half(param + at);
    const uint2 rest = load_half(remainder + at);
    return make_float4(low_master(params.x, rest.x), high_master(params.x, rest.x),
                       low_master(params.y, rest.y), high_master(params.y, rest.y));
  }
  float elements[kQuad] = {};
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    if (at + i < count) {
      elements[i] = __uint_as_float(master_bits(param[at + i].bits, remainder[at + i]));
    }
  }
  return make_float4(elements[0], elements[1], elements[2], elements[3]);
}

/// Writes master weights and their parameters.
template <bool kAligned, typename Param>
__device__ __forceinline__ void store_masters(float* master, Param* param, Index at, Index count,
                                              const float4& weights) {
  store_quad<kAligned>(master, at, count, weights);
  store_params<kAligned>(param, at, count, weights);
}
template <bool kAligned>
__device__ __forceinline__ void store_masters(std::uint16_t* remainder, BFloat16* param, Index at,
                                              Index count, const float4& weights) {
  store_params<kAligned>(param, at, count, weights);
  if (kAligned && at + kQuad <= count) {
    store_whole(remainder + at, make_uint2(pack_remainders(weights.x, weights.y),
                                           pack_remainders(weights.z, weights.w)));
    return;
  }
  const float elements[kQuad] = {weights.x, weights.y, weights.z, weights.w};
#pragma unroll
  for (int i = 0; i < kQuad; ++i) {
    if (at + i < count) {
      remainder[at + i] = remainder_bits(__float_as_uint(elements[i]));
    }
  }
}

}  // namespace tessera::cuda
