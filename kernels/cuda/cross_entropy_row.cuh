// One row of logits as the kernels of softmax_cross_entropy.cu see it: where its vectors are, the
// exponentials and their sums, loss and gradient of a column, and what is written beside vectors.
//
// A row is its 16-byte vectors that are at multiples of 16 bytes, and up to 15 bytes before and
// after them, taken as single elements by the threads of the first block: so any `ld` goes at full
// speed.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/softmax_cross_entropy.h"

namespace tessera::cuda {

template <typename T>
struct Rows {
  T* logits;  // [N, ld]
  Index vocab;
  Index ld;
  const std::int32_t* targets;  // [N]
  std::int32_t ignore_target;
  const float* weights;  // [N] or null
  CrossEntropyTerms terms;
  bool writes;
  float* loss;            // [N]
  std::uint8_t* correct;  // [N] or null
  const float* scale;     // [1]
};

/// Where the vectors of a row of `vocab` columns are.
template <typename T>
struct RowParts {
  int head;  // columns before the first vector
  int tail;  // columns after the last
  Index vectors;

  [[nodiscard]] __device__ int edges() const { return head + tail; }
  /// Column of edge number `at`, and of the first element of vector `at`.
  [[nodiscard]] __device__ Index edge_column(int at) const {
    return at < head ? at : at + vectors * kVector<T>;
  }
  [[nodiscard]] __device__ Index column(Index at) const { return head + at * kVector<T>; }
};
template <typename T>
[[nodiscard]] __device__ __forceinline__ RowParts<T> parts_of(const T* row, Index vocab) {
  const auto address = reinterpret_cast<std::uintptr_t>(row);
  const int past = static_cast<int>(address % sizeof(uint4) / sizeof(T));
  const int head =
      static_cast<int>(min(static_cast<Index>((kVector<T> - past) % kVector<T>), vocab));
  return {.head = head,
          .tail = static_cast<int>((vocab - head) % kVector<T>),
          .vectors = (vocab - head) / kVector<T>};
}

/// Bits of a vector of -infinity: columns that take no part.
template <typename T>
[[nodiscard]] __device__ __forceinline__ uint4 absent_vector() {
  constexpr unsigned kWord = sizeof(T) == sizeof(float) ? 0xFF800000U : 0xFF80FF80U;
  return make_uint4(kWord, kWord, kWord, kWord);
}

// bf16 works in powers of two: one fma and one ex2 a term. Its results carry 8 bits: the machine's
// power (2 units in the last place of f32) is far within, and what is below 2^-126 is 0. The
// constant's rounding scales all logits alike, by 1 - 1.3e-8. f32 takes the exact exponential, and
// what is called scaled here is not.
constexpr float kLog2E = 1.4426950408889634F;

template <typename T>
[[nodiscard]] __device__ __forceinline__ float scaled(float z) {
  return sizeof(T) == sizeof(float) ? z : z * kLog2E;
}
/// exp(z), of a scaled z.
template <typename T>
[[nodiscard]] __device__ __forceinline__ float power(float x) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return expf(x);
  } else {
    float value = 0;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
    return value;
  }
}
/// Scaled z less a scaled base.
template <typename T>
[[nodiscard]] __device__ __forceinline__ float above(float z, float base) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return z - base;
  } else {
    return fmaf(z, kLog2E, -base);
  }
}
/// The logarithm, scaled.
template <typename T>
[[nodiscard]] __device__ __forceinline__ float scaled_log(float x) {
  return sizeof(T) == sizeof(float) ? logf(x) : log2f(x);
}
/// What was scaled, in nats.
template <typename T>
[[nodiscard]] __device__ __forceinline__ float natural(float x) {
  constexpr float kLn2 = 0.69314718055994531F;
  return sizeof(T) == sizeof(float) ? x : x * kLn2;
}
template <typename T>
[[nodiscard]] __device__ __forceinline__ float exponential(float x) {
  return power<T>(scaled<T>(x));
}

/// z' of z. With a cap, -infinity stays what it is.
template <bool kCapped>
[[nodiscard]] __device__ __forceinline__ float capped(float z, float cap) {
  if constexpr (kCapped) {
    return z == -INFINITY ? z : cap * tanhf(z / cap);
  } else {
    return z;
  }
}

/// What some columns of a row are known to hold.
struct Statistics {
  float largest;  // some z' near the largest, or -infinity where there are no columns
  float sum;      // sum exp(z' - largest)
  float total;    // sum z', with label smoothing only
  int beaten;     // not 0: a column beats the target: it is larger, or as large and before it

  [[nodiscard]] static __device__ Statistics none() {
    return {.largest = -INFINITY, .sum = 0, .total = 0, .beaten = 0};
  }
};
[[nodiscard]] __device__ __forceinline__ Statistics merged(const Statistics& a,
                                                           const Statistics& b) {
  const float largest = fmaxf(a.largest, b.largest);
  // no difference of infinities: they are equal, or one is -infinity
  const float of_a = a.largest == largest ? 1.0F : expf(a.largest - largest);
  const float of_b = b.largest == largest ? 1.0F : expf(b.largest - largest);
  return {.largest = largest,
          .sum = a.sum * of_a + b.sum * of_b,
          .total = a.total + b.total,
          .beaten = a.beaten | b.beaten};
}

/// Lane 0 has the merger of a warp's statistics.
[[nodiscard]] __device__ __forceinline__ Statistics merge_warp(Statistics mine) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const Statistics other = {.largest = __shfl_down_sync(kAllLanes, mine.largest, offset),
                              .sum = __shfl_down_sync(kAllLanes, mine.sum, offset),
                              .total = __shfl_down_sync(kAllLanes, mine.total, offset),
                              .beaten = __shfl_down_sync(kAllLanes, mine.beaten, offset)};
    mine = merged(mine, other);
  }
  return mine;
}

/// Thread 0 has the merger of a block's statistics. Requires: whole warps.
[[nodiscard]] __device__ __forceinline__ Statistics merge_block(Statistics mine,
                                                                Statistics (&shared)[kWarp]) {
  const unsigned lane = threadIdx.x % kWarp;
  mine = merge_warp(mine);
  if (lane == 0) {
    shared[threadIdx.x / kWarp] = mine;
  }
  __syncthreads();
  if (threadIdx.x < kWarp) {
    mine = merge_warp(lane < blockDim.x / kWarp ? shared[lane] : Statistics::none());
  }
  return mine;
}

/// What the gradient of a row is made of.
struct Gradient {
  float largest;    // z' that the exponentials are taken from
  float factor;     // of exp(z' - largest): scale * weight * (1 + 2 z_loss lse) / sum
  float shift;      // of every column: scale * weight * s / V
  float at_target;  // of the target: scale * weight * (1 - s)
};

/// The row's own numbers, read before they are needed.
struct RowFactors {
  float target_logit;
  float weight;
  float scale;  // scale * weight; 0 where no gradient is needed
};
template <typename T>
[[nodiscard]] __device__ __forceinline__ RowFactors factors_of(const Rows<T>& rows, Index n,
                                                               std::int32_t target) {
  const float weight = rows.weights == nullptr ? 1.0F : rows.weights[n];
  return {.target_logit = to_f32(rows.logits[n * rows.ld + target]),
          .weight = weight,
          .scale = rows.writes ? *rows.scale * weight : 0.0F};
}

template <typename T, bool kCapped>
[[nodiscard]] __device__ __forceinline__ float loss_of(const Rows<T>& rows,
                                                       const RowFactors& factors,
                                                       const Statistics& all) {
  const CrossEntropyTerms& terms = rows.terms;
  const float s = terms.label_smoothing;
  const float log_sum = logf(all.sum);
  // differences to the largest first: their digits would be lost behind it
  const float target = capped<kCapped>(factors.target_logit, terms.soft_cap);
  float loss = (1.0F - s) * (log_sum + (all.largest - target));
  if (s != 0) {
    loss += s * (log_sum + (all.largest - all.total / static_cast<float>(rows.vocab)));
  }
  if (terms.z_loss != 0) {
    const float lse = all.largest + log_sum;
    loss += terms.z_loss * lse * lse;
  }
  return factors.weight * loss;
}

template <typename T>
[[nodiscard]] __device__ __forceinline__ Gradient gradient_of(const Rows<T>& rows,
                                                              const RowFactors& factors,
                                                              const Statistics& all) {
  const CrossEntropyTerms& terms = rows.terms;
  float growth = 1;
  if (terms.z_loss != 0) {
    growth += 2.0F * terms.z_loss * (all.largest + logf(all.sum));
  }
  return {.largest = all.largest,
          .factor = factors.scale * growth / all.sum,
          .shift = factors.scale * terms.label_smoothing / static_cast<float>(rows.vocab),
          .at_target = factors.scale * (1.0F - terms.label_smoothing)};
}

template <typename T>
__device__ __forceinline__ void report(const Rows<T>& rows, Index n, float loss, bool is_correct) {
  rows.loss[n] = loss;
  if (rows.correct != nullptr) {
    rows.correct[n] = is_correct ? 1 : 0;
  }
}

/// What remains after the column's share of the sum: the target's part, and the cap's own gradient.
template <bool kCapped>
[[nodiscard]] __device__ __forceinline__ float logit_gradient_of_value(float value, float z,
                                                                       bool is_target,
                                                                       const Gradient& gradient,
                                                                       float cap) {
  if (is_target) {
    value -= gradient.at_target;
  }
  if constexpr (kCapped) {
    const float ratio = tanhf(z / cap);
    value = z == -INFINITY ? 0.0F : value * (1.0F - ratio * ratio);
  }
  return value;
}

/// dloss/dz of one column, scaled.
template <typename T, bool kCapped>
[[nodiscard]] __device__ __forceinline__ float logit_gradient(float z, bool is_target,
                                                              const Gradient& gradient, float cap) {
  const float value =
      exponential<T>(capped<kCapped>(z, cap) - gradient.largest) * gradient.factor - gradient.shift;
  return logit_gradient_of_value<kCapped>(value, z, is_target, gradient, cap);
}

/// The gradient of a vector of logits, none of them the target's.
template <typename T, bool kCapped>
[[nodiscard]] __device__ __forceinline__ uint4 logit_gradients(const uint4& logits,
                                                               const Gradient& gradient,
                                                               float cap) {
  float values[kVector<T>];
  unpack<T>(logits, values);
#pragma unroll
  for (int j = 0; j < kVector<T>; ++j) {
    values[j] = logit_gradient<T, kCapped>(values[j], false, gradient, cap);
  }
  return pack<T>(values);
}

/// Largest element of a vector; NaN counts as absent.
template <typename T>
[[nodiscard]] __device__ __forceinline__ float largest_of(const uint4& raw) {
  const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
  if constexpr (sizeof(T) == sizeof(float)) {
    return fmaxf(fmaxf(__uint_as_float(words[0]), __uint_as_float(words[1])),
                 fmaxf(__uint_as_float(words[2]), __uint_as_float(words[3])));
  } else {
    __nv_bfloat162 pairs[4];
    memcpy(pairs, words, sizeof pairs);
    const __nv_bfloat162 pair = __hmax2(__hmax2(pairs[0], pairs[1]), __hmax2(pairs[2], pairs[3]));
    return fmaxf(__low2float(pair), __high2float(pair));
  }
}

/// sum exp(z' - base) over a vector.
template <typename T, bool kCapped>
[[nodiscard]] __device__ __forceinline__ float exponentials(const uint4& raw, float base,
                                                            float cap) {
  float values[kVector<T>];
  unpack<T>(raw, values);
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kVector<T>; ++j) {
    sum += exponential<T>(capped<kCapped>(values[j], cap) - base);
  }
  return sum;
}

/// sum z' over a vector.
template <typename T, bool kCapped>
[[nodiscard]] __device__ __forceinline__ float plain_sum(const uint4& raw, float cap) {
  float values[kVector<T>];
  unpack<T>(raw, values);
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kVector<T>; ++j) {
    sum += capped<kCapped>(values[j], cap);
  }
  return sum;
}

/// A thread's vectors of a row: begin, begin + step, ... below end.
struct Share {
  int begin;
  int step;
  int end;

  [[nodiscard]] __device__ bool has(int vector) const {
    return vector >= begin && vector < end && (vector - begin) % step == 0;
  }
};

/// True if a column before the target, among the share's vectors, equals its logit. Reads them
/// again: few threads ever ask.
template <typename T>
[[nodiscard]] __device__ __forceinline__ bool has_equal_before(const T* row, Index head,
                                                               const Share& share, Index target,
                                                               float target_logit) {
#pragma unroll 1
  for (Index vector = share.begin; vector < share.end; vector += share.step) {
    const Index first = head + vector * kVector<T>;
    if (first >= target) {
      break;
    }
    const Index end = min(first + kVector<T>, target);
#pragma unroll 1
    for (Index column = first; column < end; ++column) {
      if (to_f32(row[column]) == target_logit) {
        return true;
      }
    }
  }
  return false;
}

/// Zeros over columns [first, ld) of a row, by `step` threads of which this is number `begin`.
template <typename T>
__device__ __forceinline__ void clear_columns(T* row, Index first, Index ld, Index begin,
                                              Index step) {
  for (Index column = first + begin; column < ld; column += step) {
    row[column] = T{};
  }
}

/// A row that takes no part: zeros, by `step` threads of which this is number `begin`.
template <typename T>
__device__ __forceinline__ void ignore_row(const Rows<T>& rows, Index n, int begin, int step) {
  if (rows.writes) {
    T* row = rows.logits + n * rows.ld;
    const RowParts<T> parts = parts_of(row, rows.ld);
    for (Index at = begin; at < parts.vectors; at += step) {
      store_whole(row + parts.column(at), uint4{});
    }
    if (begin < parts.edges()) {
      row[parts.edge_column(begin)] = T{};
    }
  }
  if (begin == 0) {
    report(rows, n, 0.0F, false);
  }
}

/// A thread's column beside the vectors: the first few threads have one each.
template <typename T>
struct Edge {
  bool present;
  Index column;
  float logit;  // -infinity where there is none
};
template <typename T>
[[nodiscard]] __device__ __forceinline__ Edge<T> edge_of(const T* row, const RowParts<T>& parts,
                                                         int thread) {
  const bool present = thread < parts.edges();
  const Index column = present ? parts.edge_column(thread) : 0;
  return {.present = present, .column = column, .logit = present ? to_f32(row[column]) : -INFINITY};
}

/// What is written after the vectors: the edges; the target's column, by the thread that has just
/// written over it; the padding.
template <typename T, bool kCapped>
__device__ __forceinline__ void finish_row(const Rows<T>& rows, T* row, const RowParts<T>& parts,
                                           std::int32_t target, const RowFactors& factors,
                                           const Edge<T>& edge, const Gradient& gradient,
                                           const Share& share, int thread, int step) {
  const float cap = rows.terms.soft_cap;
  if (edge.present) {
    row[edge.column] =
        from_f32<T>(logit_gradient<T, kCapped>(edge.logit, edge.column == target, gradient, cap));
  }
  const int among_vectors = target - parts.head;
  if (among_vectors >= 0 && share.has(among_vectors / kVector<T>)) {
    row[target] =
        from_f32<T>(logit_gradient<T, kCapped>(factors.target_logit, true, gradient, cap));
  }
  clear_columns(row, rows.vocab, rows.ld, thread, step);
}

/// 1 if a column of this thread beats the target, `largest` being the largest of them all.
template <typename T>
[[nodiscard]] __device__ __forceinline__ int beats_target(const Rows<T>& rows, const T* row,
                                                          const RowParts<T>& parts,
                                                          std::int32_t target, float target_logit,
                                                          const Edge<T>& edge, float largest,
                                                          const Share& share) {
  bool beats = largest > target_logit;
  if (largest == target_logit && rows.correct != nullptr) {
    beats = has_equal_before<T>(row, parts.head, share, target, target_logit) ||
            (edge.present && edge.column < target && edge.logit == target_logit);
  }
  return beats ? 1 : 0;
}

}  // namespace tessera::cuda
