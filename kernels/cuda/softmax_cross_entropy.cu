// Two kernels. On Hopper and later rows stream through clusters of up to 8 blocks: bulk copies
// bring the next rows into shared memory while a row is worked on, so each logit is read once; the
// blocks exchange what they know of the row through distributed shared memory, and the gradient is
// written over the logits. Elsewhere, and for rows beyond a cluster or so short that the caches
// hold them, one block reads the row twice.
//
// A row is its 16-byte vectors that lie at multiples of 16 bytes, and up to 15 bytes before and
// after them, taken as single elements by the threads of the first block: so any `ld` goes at full
// speed.
#include <algorithm>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/softmax_cross_entropy.h"

namespace tessera::cuda {
namespace {

constexpr int kMostBlocks = 8;         // of a cluster: the most that every GPU with clusters allows
constexpr int kStreamedThreads = 512;  // of the kernel that rows stream through
constexpr int kMostStreamedVectors = 20;        // of a thread there
constexpr Index kRingBytes = Index{224} << 10;  // of shared memory, so one block a multiprocessor
constexpr int kTwiceThreads = 1024;             // of the kernel that reads twice
constexpr int kTwiceUnroll = 4;                 // vectors of a thread in flight there

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

/// Where the vectors of a row of `vocab` columns lie.
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

/// bf16 results carry 8 bits: the machine's exponential (2 units in the last place of f32 and the
/// rounding of x log2(e)) is far within, and what is below 2^-126 is 0. f32 takes the exact one.
template <typename T>
[[nodiscard]] __device__ __forceinline__ float exponential(float x) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return expf(x);
  } else {
    constexpr float kLog2E = 1.4426950408889634F;
    float power = 0;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * kLog2E));
    return power;
  }
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
  float scale;  // scale * weight; 0 where no gradient is wanted
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

/// dloss/dz of one column, scaled.
template <typename T, bool kCapped>
[[nodiscard]] __device__ __forceinline__ float slope(float z, bool is_target,
                                                     const Gradient& gradient, float cap) {
  float value =
      exponential<T>(capped<kCapped>(z, cap) - gradient.largest) * gradient.factor - gradient.shift;
  if (is_target) {
    value -= gradient.at_target;
  }
  if constexpr (kCapped) {
    const float ratio = tanhf(z / cap);
    value = z == -INFINITY ? 0.0F : value * (1.0F - ratio * ratio);
  }
  return value;
}

/// The gradient of a vector of logits, none of them the target's.
template <typename T, bool kCapped>
[[nodiscard]] __device__ __forceinline__ uint4 slopes(const uint4& logits, const Gradient& gradient,
                                                      float cap) {
  float values[kVector<T>];
  unpack<T>(logits, values);
#pragma unroll
  for (int j = 0; j < kVector<T>; ++j) {
    values[j] = slope<T, kCapped>(values[j], false, gradient, cap);
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
        from_f32<T>(slope<T, kCapped>(edge.logit, edge.column == target, gradient, cap));
  }
  const int among_vectors = target - parts.head;
  if (among_vectors >= 0 && share.has(among_vectors / kVector<T>)) {
    row[target] = from_f32<T>(slope<T, kCapped>(factors.target_logit, true, gradient, cap));
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

// ---- rows in turn through a cluster -------------------------------------------------------------

// Clusters stay: each takes every `gridDim.x / blocks`-th row, and while it works on one the next
// ones are on their way into shared memory. Block `rank` of the cluster has vectors
// [rank * part, (rank + 1) * part) of a row, number i * kThreads + f of them its thread f.
struct Ring {
  int slots;  // rows on their way at a time, at most kMostSlots
  int part;   // vectors of a slot
};
constexpr int kMostSlots = 4;

template <typename T>
__device__ __forceinline__ void fetch_row(const Rows<T>& rows, Index n, Index count, unsigned rank,
                                          int part, uint4* slot, std::uint64_t* arrived) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  if (n >= count) {
    return;
  }
  if (rows.targets[n] == rows.ignore_target) {
    arrive(*arrived, 0);
    return;
  }
  const T* row = rows.logits + n * rows.ld;
  const RowParts<T> parts = parts_of(row, rows.vocab);
  const Index begin = min(static_cast<Index>(rank) * part, parts.vectors);
  const Index end = min(begin + part, parts.vectors);
  const auto bytes = static_cast<unsigned>((end - begin) * static_cast<Index>(sizeof(uint4)));
  arrive(*arrived, bytes);
  if (bytes > 0) {
    fetch(slot, row + parts.column(begin), bytes, *arrived);
  }
#endif
}

template <typename T, int kVectors, int kThreads, bool kCapped>
__global__ void __launch_bounds__(kThreads, 1)
    cross_entropy_streamed(Rows<T> rows, Index count, Ring ring) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ uint4 slots[];  // [ring.slots, ring.part]
  __shared__ Statistics of_warps[kWarp];
  __shared__ Mailbox mailboxes[2];  // in turn: a fast block may be one row ahead
  __shared__ std::uint64_t arrived[kMostSlots];
  const unsigned blocks = cluster_blocks();
  const unsigned rank = cluster_rank();
  const Index clusters = gridDim.x / blocks;
  const auto in_block = static_cast<int>(threadIdx.x);
  const auto thread = static_cast<int>(rank) * kThreads + in_block;
  const auto step = static_cast<int>(blocks) * kThreads;
  const float cap = rows.terms.soft_cap;
  const Index first_row = blockIdx.x / blocks;
  if (threadIdx.x == 0) {
    for (std::uint64_t& barrier : arrived) {
      open_barrier(barrier);
    }
    open_barrier(mailboxes[0].barrier);
    open_barrier(mailboxes[1].barrier);
    announce_barriers();
    for (int s = 0; s < ring.slots; ++s) {
      fetch_row(rows, first_row + s * clusters, count, rank, ring.part, slots + s * ring.part,
                &arrived[s]);
    }
  }
  __syncthreads();
  enter_cluster();
  await_cluster();

  int slot = 0;
  unsigned round = 0;      // of the ring
  unsigned exchanges = 0;  // over the mailboxes
  for (Index n = first_row; n < count; n += clusters) {
    const std::int32_t target = rows.targets[n];
    await(arrived[slot], round % 2);
    T* row = rows.logits + n * rows.ld;
    const RowParts<T> parts = parts_of(row, rows.vocab);
    const auto vectors = static_cast<int>(parts.vectors);
    const int begin = min(static_cast<int>(rank) * ring.part, vectors);
    const int mine_count = min(ring.part, vectors - begin);  // of the block
    const Share share = {.begin = begin + in_block, .step = kThreads, .end = begin + mine_count};
    uint4 raw[kVectors];
#  pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = in_block + i * kThreads;
      raw[i] = at < mine_count ? slots[slot * ring.part + at] : absent_vector<T>();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      fetch_row(rows, n + ring.slots * clusters, count, rank, ring.part, slots + slot * ring.part,
                &arrived[slot]);
    }
    slot = slot + 1;
    if (slot == ring.slots) {
      slot = 0;
      ++round;
    }
    if (target == rows.ignore_target) {  // every block of the cluster alike
      ignore_row(rows, n, thread, step);
      continue;
    }
    const Edge<T> edge = edge_of(row, parts, thread);
    const RowFactors factors = factors_of(rows, n, target);

    float largest = edge.logit;
#  pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      largest = fmaxf(largest, largest_of<T>(raw[i]));
    }
    Statistics mine = {.largest = capped<kCapped>(largest, cap),
                       .sum = 0,
                       .total = 0,
                       .beaten = beats_target(rows, row, parts, target, factors.target_logit, edge,
                                              largest, share)};
    const float base = mine.largest == -INFINITY ? 0.0F : mine.largest;
    mine.sum = exponential<T>(capped<kCapped>(edge.logit, cap) - base);  // 0 without an edge
#  pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (i * kThreads < mine_count) {
        keep_packed(raw[i]);
        mine.sum += exponentials<T, kCapped>(raw[i], base, cap);
      }
    }
    if (rows.terms.label_smoothing != 0) {
      mine.total = edge.present ? capped<kCapped>(edge.logit, cap) : 0.0F;
#  pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        keep_packed(raw[i]);
        mine.total +=
            in_block + i * kThreads < mine_count ? plain_sum<T, kCapped>(raw[i], cap) : 0.0F;
      }
    }

    mine = merge_block(mine, of_warps);
    Mailbox& mailbox = mailboxes[exchanges % 2];
    if (threadIdx.x < kWarp) {
      const uint4 message =
          make_uint4(__shfl_sync(kAllLanes, __float_as_uint(mine.largest), 0),
                     __shfl_sync(kAllLanes, __float_as_uint(mine.sum), 0),
                     __shfl_sync(kAllLanes, __float_as_uint(mine.total), 0),
                     __shfl_sync(kAllLanes, static_cast<unsigned>(mine.beaten), 0));
      if (threadIdx.x == 0) {
        arrive(mailbox.barrier, blocks * static_cast<unsigned>(sizeof(uint4)));
      }
      if (threadIdx.x < blocks) {
        send(mailbox, rank, threadIdx.x, message);
      }
    }
    await(mailbox.barrier, exchanges / 2 % 2);
    ++exchanges;
    Statistics all = Statistics::none();
    for (unsigned k = 0; k < blocks; ++k) {
      const uint4 message = mailbox.messages[k];
      all = merged(all, {.largest = __uint_as_float(message.x),
                         .sum = __uint_as_float(message.y),
                         .total = __uint_as_float(message.z),
                         .beaten = static_cast<int>(message.w)});
    }
    if (thread == 0) {
      report(rows, n, loss_of<T, kCapped>(rows, factors, all), all.beaten == 0);
    }
    if (!rows.writes) {
      continue;
    }
    const Gradient gradient = gradient_of(rows, factors, all);
    T* const first_vector = row + parts.column(share.begin);
#  pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (i * kThreads < mine_count) {
        keep_packed(raw[i]);
        if (in_block + i * kThreads < mine_count) {
          store_whole(first_vector + static_cast<Index>(i) * kThreads * kVector<T>,
                      slopes<T, kCapped>(raw[i], gradient, cap));
        }
      }
    }
    finish_row<T, kCapped>(rows, row, parts, target, factors, edge, gradient, share, thread, step);
  }
#endif
}

// ---- one row a block, read twice --------------------------------------------------------------

template <typename T, bool kCapped>
__global__ void __launch_bounds__(kTwiceThreads) cross_entropy_twice(Rows<T> rows) {
  __shared__ Statistics of_warps[kWarp];
  __shared__ Statistics of_block;
  const Index n = blockIdx.x;
  const auto thread = static_cast<int>(threadIdx.x);
  const auto step = static_cast<int>(blockDim.x);
  const std::int32_t target = rows.targets[n];
  if (target == rows.ignore_target) {
    ignore_row(rows, n, thread, step);
    return;
  }
  T* row = rows.logits + n * rows.ld;
  const float cap = rows.terms.soft_cap;
  const RowParts<T> parts = parts_of(row, rows.vocab);
  const Edge<T> edge = edge_of(row, parts, thread);
  const RowFactors factors = factors_of(rows, n, target);
  const Share share = {.begin = thread, .step = step, .end = static_cast<int>(parts.vectors)};

  float largest = edge.logit;
  Statistics mine = Statistics::none();
  mine.largest = capped<kCapped>(edge.logit, cap);
  mine.sum = exponential<T>(mine.largest - (mine.largest == -INFINITY ? 0.0F : mine.largest));
  mine.total = edge.present ? mine.largest : 0.0F;
  constexpr Index kUnroll = kTwiceUnroll;
  for (Index begin = thread; begin < parts.vectors; begin += step * kUnroll) {
    uint4 raw[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const Index at = begin + i * step;
      raw[i] = at < parts.vectors ? load_whole(row + parts.column(at)) : absent_vector<T>();
    }
    float largest_here = -INFINITY;
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      largest_here = fmaxf(largest_here, largest_of<T>(raw[i]));
    }
    largest = fmaxf(largest, largest_here);
    Statistics here = Statistics::none();
    here.largest = capped<kCapped>(largest_here, cap);
    const float base = here.largest == -INFINITY ? 0.0F : here.largest;
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      keep_packed(raw[i]);
      here.sum += exponentials<T, kCapped>(raw[i], base, cap);
      if (rows.terms.label_smoothing != 0 && begin + i * step < parts.vectors) {
        here.total += plain_sum<T, kCapped>(raw[i], cap);
      }
    }
    mine = merged(mine, here);
  }
  mine.beaten = beats_target(rows, row, parts, target, factors.target_logit, edge, largest, share);
  mine = merge_block(mine, of_warps);
  if (threadIdx.x == 0) {
    of_block = mine;
  }
  __syncthreads();
  const Statistics all = of_block;
  if (threadIdx.x == 0) {
    report(rows, n, loss_of<T, kCapped>(rows, factors, all), all.beaten == 0);
  }
  if (!rows.writes) {
    return;
  }
  const Gradient gradient = gradient_of(rows, factors, all);
  for (Index begin = thread; begin < parts.vectors; begin += step * kUnroll) {
    uint4 raw[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const Index at = begin + i * step;
      raw[i] = at < parts.vectors ? load_whole(row + parts.column(at)) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const Index at = begin + i * step;
      if (at < parts.vectors) {
        store_whole(row + parts.column(at), slopes<T, kCapped>(raw[i], gradient, cap));
      }
    }
  }
  finish_row<T, kCapped>(rows, row, parts, target, factors, edge, gradient, share, thread, step);
}

// ---- launches ---------------------------------------------------------------------------------

int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  TESSERA_CHECK_CUDA(cudaGetDevice(&device));
  TESSERA_CHECK_CUDA(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

bool has_clusters() {
  constexpr int kHopper = 9;
  return device_attribute(cudaDevAttrComputeCapabilityMajor) >= kHopper;
}

unsigned whole_warps(Index threads) {
  return static_cast<unsigned>(divide_up(threads, kWarp) * kWarp);
}

template <typename T>
void launch_stream(void (*kernel)(Rows<T>, Index, Ring), const Rows<T>& rows, Index count,
                   Index blocks, Index part, int multiprocessors, Stream& stream) {
  const Index slot_bytes = part * static_cast<Index>(sizeof(uint4));
  const Ring ring = {
      .slots = static_cast<int>(std::clamp<Index>(kRingBytes / slot_bytes, 1, kMostSlots)),
      .part = static_cast<int>(part)};
  const auto bytes = static_cast<std::size_t>(ring.slots * slot_bytes);
  TESSERA_CHECK_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(bytes)));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(blocks);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kStreamedThreads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream.cuda_handle();
  config.attrs = &attribute;
  config.numAttrs = 1;
  int resident = 0;  // clusters that run at a time, the others would wait for all of their rows
  TESSERA_CHECK_CUDA(cudaOccupancyMaxActiveClusters(&resident, kernel, &config));
  const Index clusters = std::min({count, static_cast<Index>(std::max(resident, 1)),
                                   std::max<Index>(1, multiprocessors / blocks)});
  config.gridDim = dim3(static_cast<unsigned>(clusters * blocks));
  TESSERA_CHECK_CUDA(cudaLaunchKernelEx(&config, kernel, rows, count, ring));
}

/// False if a row is too long for a cluster, or so short that nothing is gained.
template <typename T, bool kCapped>
bool launch_streamed(const Rows<T>& rows, Index count, Index vectors, int multiprocessors,
                     Stream& stream) {
  constexpr Index kMostOfBlock = Index{kStreamedThreads} * kMostStreamedVectors;
  constexpr Index kFewest = Index{2} * kStreamedThreads;
  if (vectors < kFewest || vectors > kMostBlocks * kMostOfBlock) {
    return false;
  }
  Index blocks = 1;
  while (vectors > blocks * kMostOfBlock) {
    blocks *= 2;
  }
  const Index part = divide_up(vectors, blocks);
  const Index of_thread = divide_up(part, kStreamedThreads);
  const auto start = [&](void (*kernel)(Rows<T>, Index, Ring)) {
    launch_stream<T>(kernel, rows, count, blocks, part, multiprocessors, stream);
  };
  if (of_thread <= 4) {
    start(cross_entropy_streamed<T, 4, kStreamedThreads, kCapped>);
  } else if (of_thread <= 8) {
    start(cross_entropy_streamed<T, 8, kStreamedThreads, kCapped>);
  } else if (of_thread <= 16) {
    start(cross_entropy_streamed<T, 16, kStreamedThreads, kCapped>);
  } else {
    start(cross_entropy_streamed<T, kMostStreamedVectors, kStreamedThreads, kCapped>);
  }
  return true;
}

template <typename T, bool kCapped>
void launch(const Rows<T>& rows, Index count, int multiprocessors, Stream& stream) {
  const Index vectors = divide_up(rows.vocab, kVector<T>);  // at most, whatever the alignment
  if (has_clusters()) {
    const int on =
        multiprocessors != 0 ? multiprocessors : device_attribute(cudaDevAttrMultiProcessorCount);
    if (launch_streamed<T, kCapped>(rows, count, vectors, on, stream)) {
      return;
    }
  }
  const unsigned threads = std::min(whole_warps(vectors), unsigned{kTwiceThreads});
  cross_entropy_twice<T, kCapped>
      <<<block_count(count, 1), threads, 0, stream.cuda_handle()>>>(rows);
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

}  // namespace

void softmax_cross_entropy(const SoftmaxCrossEntropyArgs& args, Stream& stream) {
  const Index count = args.targets.count();
  const DType dtype = args.logits.dtype;
  TESSERA_REQUIRE(args.vocab >= 1 && args.ld >= args.vocab, "1 <= V <= ld");
  TESSERA_REQUIRE(args.terms.soft_cap >= 0, "soft_cap is 0 for none, or above 0");
  require_room(args.logits, dtype, count * args.ld, "logits");
  require_tensor(args.targets, DType::i32, count, "targets");
  require_tensor(args.loss, DType::f32, count, "loss");
  if (args.weights.data != nullptr) {
    require_tensor(args.weights, DType::f32, count, "weights");
  }
  if (args.correct.data != nullptr) {
    require_tensor(args.correct, DType::u8, count, "correct");
  }
  const bool writes = args.gradient == LogitsGradient::write;
  if (writes) {
    require_tensor(args.scale, DType::f32, 1, "scale");
  }
  if (count == 0) {
    return;
  }
  with_element_type(dtype, "logits", [&](auto zero) {
    using T = decltype(zero);
    const Rows<T> rows = {.logits = data_as<T>(args.logits),
                          .vocab = args.vocab,
                          .ld = args.ld,
                          .targets = data_as<std::int32_t>(args.targets),
                          .ignore_target = args.ignore_target,
                          .weights = static_cast<const float*>(args.weights.data),
                          .terms = args.terms,
                          .writes = writes,
                          .loss = data_as<float>(args.loss),
                          .correct = static_cast<std::uint8_t*>(args.correct.data),
                          .scale = static_cast<const float*>(args.scale.data)};
    if (args.terms.soft_cap != 0) {
      launch<T, true>(rows, count, args.multiprocessors, stream);
    } else {
      launch<T, false>(rows, count, args.multiprocessors, stream);
    }
  });
}

}  // namespace tessera::cuda
