// Heads in registers, for the kernels of rotary.cu: where a lane works, its angles and its part of a
// head, and the gradient of such a part through rotation and QK-norm.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace tessera::cuda {

// What a kernel is given of the shape.
struct Heads {
  Index tokens;
  Index sequence;
  Index query_heads;
  Index kv_heads;
  Index dim;    // D
  float share;  // 1 / D
  int vectors;  // of half a head
  int lanes;    // of a head: vectors, rounded up to a power of two

  [[nodiscard]] __device__ Index rotated() const { return query_heads + kv_heads; }
  [[nodiscard]] __device__ Index row_width() const { return (rotated() + kv_heads) * dim; }
};

/// Where a lane works: vector `at` of each half, of head `slot` of those that a warp takes at once.
struct Place {
  int at;
  int slot;
  int slots;
  bool active;
};
[[nodiscard]] __device__ __forceinline__ Place place_of_lane(const Heads& heads) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int at = lane % heads.lanes;
  return {.at = at,
          .slot = lane / heads.lanes,
          .slots = kWarp / heads.lanes,
          .active = at < heads.vectors};
}

/// The sum over the lanes of a head.
[[nodiscard]] __device__ __forceinline__ float head_sum(float value, int lanes) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const float more = __shfl_xor_sync(kAllLanes, value, offset);
    value = offset < lanes ? value + more : value;
  }
  return value;
}

/// The lane's angles of one position.
template <typename T>
struct Angles {
  float cosine[kVector<T>];
  float sine[kVector<T>];
};
template <typename T>
__device__ __forceinline__ void load_angles(Angles<T>& angles, const float* cosine,
                                            const float* sine, Index first) {
#pragma unroll
  for (int j = 0; j < kVector<T>; j += kQuad) {
    const uint4 c = load_whole(cosine + first + j);
    angles.cosine[j] = __uint_as_float(c.x);
    angles.cosine[j + 1] = __uint_as_float(c.y);
    angles.cosine[j + 2] = __uint_as_float(c.z);
    angles.cosine[j + 3] = __uint_as_float(c.w);
    const uint4 s = load_whole(sine + first + j);
    angles.sine[j] = __uint_as_float(s.x);
    angles.sine[j + 1] = __uint_as_float(s.y);
    angles.sine[j + 2] = __uint_as_float(s.z);
    angles.sine[j + 3] = __uint_as_float(s.w);
  }
}

/// A lane's part of a head: vector `at` of either half.
struct Halves {
  uint4 low;
  uint4 high;
};
template <typename T>
[[nodiscard]] __device__ __forceinline__ Halves load_halves(const T* head, int at, Index dim) {
  return {.low = load_whole(head + at * kVector<T>),
          .high = load_whole(head + dim / 2 + at * kVector<T>)};
}
template <typename T>
__device__ __forceinline__ void store_halves(T* head, int at, Index dim, const Halves& halves) {
  store_whole(head + at * kVector<T>, halves.low);
  store_whole(head + dim / 2 + at * kVector<T>, halves.high);
}

/// Word by word: a choice between two structs would be one between their addresses.
[[nodiscard]] __device__ __forceinline__ uint4 choose(bool first, const uint4& a, const uint4& b) {
  return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
}

template <typename T>
[[nodiscard]] __device__ __forceinline__ float sum_of_squares(const Halves& halves) {
  float low[kVector<T>];
  float high[kVector<T>];
  unpack<T>(halves.low, low);
  unpack<T>(halves.high, high);
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kVector<T>; ++j) {
    sum = fmaf(low[j], low[j], sum);
    sum = fmaf(high[j], high[j], sum);
  }
  return sum;
}

// ---- backward with QK-norm --------------------------------------------------------------------

template <typename T>
struct GainGradient {
  float low[kVector<T>];
  float high[kVector<T>];
};

// d through the rotation, back to the normed head.
template <typename T>
__device__ __forceinline__ void rotary_backward_pairs(const Halves& d, const Angles<T>& angles,
                                                      float (&low)[kVector<T>],
                                                      float (&high)[kVector<T>]) {
  unpack<T>(d.low, low);
  unpack<T>(d.high, high);
#pragma unroll
  for (int j = 0; j < kVector<T>; ++j) {
    const float a = low[j];
    const float b = high[j];
    low[j] = a * angles.cosine[j] + b * angles.sine[j];
    high[j] = b * angles.cosine[j] - a * angles.sine[j];
  }
}

// The gradient of one head's part, in place, through the rotation and the norm. The gain and the
// head are unpacked twice: registers are scarce.
template <typename T>
__device__ __forceinline__ void rotary_backward_part(Halves& d, Halves x, Halves& gain,
                                                     const Angles<T>& angles, const Heads& heads,
                                                     float eps, bool present,
                                                     GainGradient<T>& d_gain) {
  float d_low[kVector<T>];
  float d_high[kVector<T>];
  float x_low[kVector<T>];
  float x_high[kVector<T>];
  float gain_low[kVector<T>];
  float gain_high[kVector<T>];
  rotary_backward_pairs<T>(d, angles, d_low, d_high);
  unpack<T>(x.low, x_low);
  unpack<T>(x.high, x_high);
  unpack<T>(gain.low, gain_low);
  unpack<T>(gain.high, gain_high);
  float product = 0;
#pragma unroll
  for (int j = 0; j < kVector<T>; ++j) {
    product += gain_low[j] * d_low[j] * x_low[j] + gain_high[j] * d_high[j] * x_high[j];
  }
  const float squares = head_sum(sum_of_squares<T>(x), heads.lanes);
  product = head_sum(product, heads.lanes);
  const float r = reciprocal_rms(squares, heads.share, eps);
  const float mean = product * r * heads.share;
  if (!present) {
    return;  // it only took part in the sums over the warp
  }
  make_opaque(gain.low);
  make_opaque(gain.high);
  make_opaque(x.low);
  make_opaque(x.high);
  unpack_recomputed<T>(x.low, x_low);
  unpack_recomputed<T>(x.high, x_high);
  unpack_recomputed<T>(gain.low, gain_low);
  unpack_recomputed<T>(gain.high, gain_high);
#pragma unroll
  for (int j = 0; j < kVector<T>; ++j) {
    const float low = x_low[j] * r;
    const float high = x_high[j] * r;
    d_gain.low[j] += d_low[j] * low;
    d_gain.high[j] += d_high[j] * high;
    d_low[j] = r * (gain_low[j] * d_low[j] - low * mean);
    d_high[j] = r * (gain_high[j] * d_high[j] - high * mean);
  }
  d.low = pack<T>(d_low);
  d.high = pack<T>(d_high);
}

/// A warp has heads of q or heads of k: so one gain's sums are held in registers.
struct BlockWarps {
  int query;
  int kv;
};

/// Head `head` of `token`, which is at `position` of its sequence; and the way to the next.
struct HeadWalk {
  int token;
  int head;
  int position;
};
struct HeadStep {
  int tokens;
  int heads;
  int positions;  // tokens modulo the sequence
};
__device__ __forceinline__ void walk(HeadWalk& at, const HeadStep& step, int heads, int sequence) {
  at.token += step.tokens;
  at.head += step.heads;
  at.position += step.positions;
  if (at.head >= heads) {
    at.head -= heads;
    ++at.token;
    ++at.position;
  }
  if (at.position >= sequence) {
    at.position -= sequence;
  }
}

}  // namespace tessera::cuda
