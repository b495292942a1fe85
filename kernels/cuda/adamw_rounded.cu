#include <type_traits>

#include "kernels/cuda/adamw_element.cuh"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksAtOnce = kThreads / kWarp;  // a warp takes a block of 256 elements
constexpr int kQuadsOfLane = static_cast<int>(kMomentBlock) / kWarp / kQuad;
constexpr unsigned kLowerHalf = 0xFFFFU;
constexpr unsigned kHalfBits = 16;

// Four moments as floats, with one access.
struct Quad {
  float values[kQuad];
};

[[nodiscard]] __device__ __forceinline__ std::uint8_t byte_of(unsigned word, int i) {
  constexpr unsigned kByteBits = 8;
  return static_cast<std::uint8_t>(word >> (kByteBits * i));
}

// Moments in bf16 of a call.
struct HalfMoments {
  BFloat16* __restrict__ m;
  BFloat16* __restrict__ v;
  struct Scales {};
  [[nodiscard]] __device__ Scales scales(Index /*block*/) const { return {}; }
  __device__ void load(Index at, Scales /*scales*/, Quad& first, Quad& second) const {
    const uint2 m_raw = load_half(m + at);
    const uint2 v_raw = load_half(v + at);
    first = {{low_bf16(m_raw.x), high_bf16(m_raw.x), low_bf16(m_raw.y), high_bf16(m_raw.y)}};
    second = {{low_bf16(v_raw.x), high_bf16(v_raw.x), low_bf16(v_raw.y), high_bf16(v_raw.y)}};
  }
  [[nodiscard]] __device__ Scales new_scales(Index /*block*/, unsigned /*largest_m*/,
                                             unsigned /*largest_v*/) const {
    return {};
  }
  __device__ void store(Index at, Scales /*scales*/, const Quad& first, const Quad& second,
                        const std::array<std::uint32_t, kQuad>& random) const {
    unsigned m_words[2] = {};
    unsigned v_words[2] = {};
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const unsigned m_bits = signed_bf16(__float_as_uint(first.values[i]), random[i] & kLowerHalf);
      const unsigned v_bits =
          unsigned_bf16(__float_as_uint(second.values[i]), random[i] >> kHalfBits);
      m_words[i / 2] |= m_bits << (kHalfBits * (i % 2));
      v_words[i / 2] |= v_bits << (kHalfBits * (i % 2));
    }
    store_whole(m + at, make_uint2(m_words[0], m_words[1]));
    store_whole(v + at, make_uint2(v_words[0], v_words[1]));
  }
};

// The same in 8 bits.
struct ByteMoments {
  std::uint8_t* __restrict__ m;
  std::uint8_t* __restrict__ v;
  float* __restrict__ m_scales;
  float* __restrict__ v_scales;
  struct Scales {
    unsigned m;
    unsigned v;
  };
  [[nodiscard]] __device__ Scales scales(Index block) const {
    return {__float_as_uint(m_scales[block]), __float_as_uint(v_scales[block])};
  }
  __device__ void load(Index at, Scales scales, Quad& first, Quad& second) const {
    const unsigned m_word = *reinterpret_cast<const unsigned*>(m + at);
    const unsigned v_word = *reinterpret_cast<const unsigned*>(v + at);
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      first.values[i] = signed_number(byte_of(m_word, i), scales.m);
      second.values[i] = unsigned_number(byte_of(v_word, i), scales.v);
    }
  }
  // Of the warp's block.
  [[nodiscard]] __device__ Scales new_scales(Index block, unsigned largest_m,
                                             unsigned largest_v) const {
    const Scales scales = {block_scale(__reduce_max_sync(kAllLanes, largest_m)),
                           block_scale(__reduce_max_sync(kAllLanes, largest_v))};
    if (threadIdx.x % kWarp == 0) {
      m_scales[block] = __uint_as_float(scales.m);
      v_scales[block] = __uint_as_float(scales.v);
    }
    return scales;
  }
  __device__ void store(Index at, Scales scales, const Quad& first, const Quad& second,
                        const std::array<std::uint32_t, kQuad>& random) const {
    constexpr unsigned kByteBits = 8;
    unsigned m_word = 0;
    unsigned v_word = 0;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      const unsigned m_code =
          signed_code(__float_as_uint(first.values[i]), scales.m, random[i] & kLowerHalf);
      const unsigned v_code =
          unsigned_code(__float_as_uint(second.values[i]), scales.v, random[i] >> kHalfBits);
      m_word |= m_code << (kByteBits * i);
      v_word |= v_code << (kByteBits * i);
    }
    *reinterpret_cast<unsigned*>(m + at) = m_word;
    *reinterpret_cast<unsigned*>(v + at) = v_word;
  }
};

// Moments of `count` elements, a multiple of 256, whose first is `first` of the unit.
//   master   [count]  f32, or u16 beside param, read and written
//   moments  [count]  read and written, with their scales
//   grad     [count]  f32, read
//   param    [count]  written
template <typename Moments, typename Master, typename Param>
__global__ void __launch_bounds__(kThreads)
    update_blocks(Master* __restrict__ master, Moments moments, const float* __restrict__ grad,
                  Param* __restrict__ param, Index count, AdamWFactors factors, DecayMask decays,
                  RoundingKey key, Index first) {
  const Index block = static_cast<Index>(blockIdx.x) * kBlocksAtOnce + threadIdx.x / kWarp;
  if (block * kMomentBlock >= count) {
    return;
  }
  const Index lane = threadIdx.x % kWarp;
  const auto scales = moments.scales(block);
  Quad m[kQuadsOfLane];
  Quad v[kQuadsOfLane];
  unsigned largest_m = 0;
  unsigned largest_v = 0;
#pragma unroll
  for (int q = 0; q < kQuadsOfLane; ++q) {
    const Index inside = q * kWarp * kQuad + lane * kQuad;  // of the block
    const Index at = block * kMomentBlock + inside;
    const float4 gradient = load_quad<true>(grad, at, count);
    float4 weight = load_masters<true>(master, param, at, count);
    moments.load(at, scales, m[q], v[q]);
    const auto kept = [&](int i) { return decays[inside + i] ? factors.kept : 1.0F; };
    update_element(factors, kept(0), gradient.x, weight.x, m[q].values[0], v[q].values[0]);
    update_element(factors, kept(1), gradient.y, weight.y, m[q].values[1], v[q].values[1]);
    update_element(factors, kept(2), gradient.z, weight.z, m[q].values[2], v[q].values[2]);
    update_element(factors, kept(3), gradient.w, weight.w, m[q].values[3], v[q].values[3]);
    store_masters<true>(master, param, at, count, weight);
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      largest_m = max(largest_m, __float_as_uint(m[q].values[i]) & detail::kMagnitude);
      largest_v = max(largest_v, __float_as_uint(v[q].values[i]) & detail::kMagnitude);
    }
  }
  const auto rounded = moments.new_scales(block, largest_m, largest_v);
#pragma unroll
  for (int q = 0; q < kQuadsOfLane; ++q) {
    const Index at = block * kMomentBlock + q * kWarp * kQuad + lane * kQuad;
    moments.store(at, rounded, m[q], v[q],
                  random_quad(key, static_cast<std::uint64_t>((first + at) / kRandomQuad)));
  }
}

}  // namespace

void adamw_rounded(const AdamWArgs& args, Stream& stream) {
  static_assert(kRandomQuad == kQuad && kMomentBlock % (kWarp * kQuad) == 0);
  const Index count = args.grad.count();
  TESSERA_REQUIRE(is_vector_aligned(args.master.data) && is_vector_aligned(args.m.data) &&
                      is_vector_aligned(args.v.data) && is_vector_aligned(args.grad.data) &&
                      is_vector_aligned(args.param.data),
                  "rounded moments and what is beside them at multiples of 16 bytes");
  const unsigned blocks = block_count(count / kMomentBlock, kBlocksAtOnce);
  const auto* grad = data_as<float>(args.grad);
  const MomentRounding& rounding = args.rounding;
  with_weight_types(args.master, args.param, [&](auto* master, auto* param) {
    using Master = std::remove_pointer_t<decltype(master)>;
    using Param = std::remove_pointer_t<decltype(param)>;
    const auto launch = [&](auto moments) {
      update_blocks<decltype(moments), Master, Param>
          <<<blocks, kThreads, 0, stream.cuda_handle()>>>(master, moments, grad, param, count,
                                                          AdamWFactors(args), rounding.decays,
                                                          rounding.key, rounding.first);
    };
    if (args.m.dtype == DType::bf16) {
      launch(HalfMoments{data_as<BFloat16>(args.m), data_as<BFloat16>(args.v)});
    } else {
      launch(ByteMoments{data_as<std::uint8_t>(args.m), data_as<std::uint8_t>(args.v),
                         data_as<float>(rounding.m_scales), data_as<float>(rounding.v_scales)});
    }
  });
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

}  // namespace tessera::cuda
