// Two kernels. On Hopper and later a row is stored in the shared memory of a cluster of up to 8
// blocks until its gradient is written, so each logit is read once; the blocks exchange what they
// know of the row through distributed shared memory, and the gradient is written over the logits.
// Elsewhere, and for rows beyond a cluster or so short that the caches hold them, one block reads
// the row twice.
#include <algorithm>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/cross_entropy_row.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/softmax_cross_entropy.h"

namespace tessera::cuda {
namespace {

constexpr int kMostBlocks = 8;  // of a cluster: the most that every GPU with clusters allows
// Of the kernel that keeps rows in shared memory: small blocks, several on a multiprocessor, so
// that some read or write while others work. Measured: jobs/bench/results/notes.md, "Kernels
// alone".
constexpr int kResidentThreads = 256;
constexpr int kResidentBlocks = 6;       // of a multiprocessor that registers must leave room for
constexpr Index kResidentFewest = 1024;  // vectors of a row; shorter ones are read twice
constexpr Index kWantedPartBytes = Index{56} << 10;  // of a block: 3 to 6 are on a multiprocessor
constexpr Index kMostPartBytes = Index{224} << 10;   // what a block can have
constexpr int kTwiceThreads = 1024;                  // of the kernel that reads twice
constexpr int kTwiceUnroll = 4;                      // vectors of a thread in flight there

// ---- rows kept in shared memory ---------------------------------------------------------------

/// What differences are taken from: no difference of infinities.
[[nodiscard, maybe_unused]] __device__ __forceinline__ float finite_base(float base) {
  return base == -INFINITY ? 0.0F : base;
}

/// The merger over a warp, in every lane. `largest` is scaled in what this kernel holds.
template <typename T>
[[nodiscard]] __device__ __forceinline__ Statistics merge_lanes(const Statistics& mine,
                                                                bool has_total) {
  float largest = mine.largest;
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, offset));
  }
  const float sum = mine.sum * power<T>(mine.largest == largest ? 0.0F : mine.largest - largest);
  return {.largest = largest,
          .sum = warp_sum(sum),
          .total = has_total ? warp_sum(mine.total) : 0.0F,
          .beaten = __any_sync(kAllLanes, mine.beaten)};
}

/// As `logit_gradient`, of a scaled `gradient.largest`.
template <typename T, bool kCapped>
[[nodiscard]] __device__ __forceinline__ float logit_gradient_above(float z, bool is_target,
                                                                    const Gradient& gradient,
                                                                    float cap) {
  const float value = fmaf(power<T>(above<T>(capped<kCapped>(z, cap), gradient.largest)),
                           gradient.factor, -gradient.shift);
  return logit_gradient_of_value<kCapped>(value, z, is_target, gradient, cap);
}

/// Starts the copy of block `rank`'s part of row n. By one thread.
template <typename T>
__device__ __forceinline__ void fetch_part(const Rows<T>& rows, Index n, bool ignored,
                                           unsigned rank, int part, uint4* slot,
                                           std::uint64_t& arrived) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  if (ignored) {
    arrive(arrived, 0);
    return;
  }
  const T* row = rows.logits + n * rows.ld;
  const RowParts<T> parts = parts_of(row, rows.vocab);
  const Index begin = min(static_cast<Index>(rank) * part, parts.vectors);
  const Index end = min(begin + part, parts.vectors);
  const auto bytes = static_cast<unsigned>((end - begin) * static_cast<Index>(sizeof(uint4)));
  arrive(arrived, bytes);
  if (bytes > 0) {
    fetch(slot, row + parts.column(begin), bytes, arrived);
  }
#endif
}

// A cluster takes every `gridDim.x / blocks`-th row: each of its blocks has its part of it, vectors
// [rank * part, (rank + 1) * part), in shared memory until the gradient is written. While it waits,
// works and writes, the multiprocessor's other blocks do the same for other rows.
template <typename T, bool kCapped>
__global__ void __launch_bounds__(kResidentThreads, kResidentBlocks)
    cross_entropy_resident(Rows<T> rows, Index count, int part) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  constexpr int kUnroll = 2;        // vectors of a thread at a time
  extern __shared__ uint4 slots[];  // [part]
  __shared__ Statistics of_warps[kResidentThreads / kWarp];
  __shared__ Mailbox mailboxes[2];  // in turn: a fast block may be one row ahead
  __shared__ std::uint64_t arrived;
  const unsigned blocks = cluster_blocks();
  const unsigned rank = cluster_rank();
  const auto clusters = static_cast<Index>(gridDim.x / blocks);
  const auto in_block = static_cast<int>(threadIdx.x);
  const unsigned lane = threadIdx.x % kWarp;
  const auto thread = static_cast<int>(rank) * kResidentThreads + in_block;
  const auto step = static_cast<int>(blocks) * kResidentThreads;
  const float cap = rows.terms.soft_cap;
  const bool has_total = rows.terms.label_smoothing != 0;
  Index n = blockIdx.x / blocks;
  std::int32_t target = rows.targets[n];
  if (threadIdx.x == 0) {
    open_barrier(arrived);
    open_barrier(mailboxes[0].barrier);
    open_barrier(mailboxes[1].barrier);
    announce_barriers();
    fetch_part(rows, n, target == rows.ignore_target, rank, part, slots, arrived);
  }
  __syncthreads();
  if (blocks > 1) {
    enter_cluster();
    await_cluster();
  }
  unsigned round = 0;
  unsigned exchanges = 0;
  while (n < count) {
    T* row = rows.logits + n * rows.ld;
    const bool ignored = target == rows.ignore_target;  // in every block of the cluster alike
    const Index next = n + clusters;
    const std::int32_t next_target = next < count ? rows.targets[next] : 0;
    const RowParts<T> parts = parts_of(row, rows.vocab);
    RowFactors factors = {};
    Edge<T> edge = {};
    if (!ignored) {
      edge = edge_of(row, parts, thread);
      factors = factors_of(rows, n, target);
    }
    await(arrived, round % 2);
    ++round;
    if (ignored) {
      ignore_row(rows, n, thread, step);
    } else {
      const auto vectors = static_cast<int>(parts.vectors);
      const int begin = min(static_cast<int>(rank) * part, vectors);
      const int mine_count = min(part, vectors - begin);  // of the block
      const Share share = {
          .begin = begin + in_block, .step = kResidentThreads, .end = begin + mine_count};

      float largest = edge.logit;
      Statistics mine = {
          .largest = scaled<T>(capped<kCapped>(largest, cap)), .sum = 0, .total = 0, .beaten = 0};
      mine.sum = power<T>(above<T>(capped<kCapped>(largest, cap), finite_base(mine.largest)));
      if (has_total) {
        mine.total = edge.present ? capped<kCapped>(edge.logit, cap) : 0.0F;
      }
#  pragma unroll 1
      for (int first = in_block; first < mine_count; first += kResidentThreads * kUnroll) {
        uint4 raw[kUnroll];
        float here = -INFINITY;
#  pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
          const int at = first + i * kResidentThreads;
          raw[i] = at < mine_count ? slots[at] : absent_vector<T>();
        }
#  pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
          here = fmaxf(here, largest_of<T>(raw[i]));
        }
        if (here > largest) {
          largest = here;
          const float raised = scaled<T>(capped<kCapped>(here, cap));
          mine.sum *= power<T>(mine.largest - raised);
          mine.largest = raised;
        }
        const float base = finite_base(mine.largest);
#  pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
          make_opaque(raw[i]);
          float values[kVector<T>];
          unpack<T>(raw[i], values);
#  pragma unroll
          for (int j = 0; j < kVector<T>; ++j) {
            mine.sum += power<T>(above<T>(capped<kCapped>(values[j], cap), base));
          }
          if (has_total && first + i * kResidentThreads < mine_count) {
            mine.total += plain_sum<T, kCapped>(raw[i], cap);
          }
        }
      }
      mine.beaten =
          beats_target(rows, row, parts, target, factors.target_logit, edge, largest, share);
      mine = merge_lanes<T>(mine, has_total);
      if (lane == 0) {
        of_warps[threadIdx.x / kWarp] = mine;
      }
      __syncthreads();
      Statistics all = merge_lanes<T>(
          lane < kResidentThreads / kWarp ? of_warps[lane] : Statistics::none(), has_total);
      if (blocks > 1) {
        Mailbox& mailbox = mailboxes[exchanges % 2];
        if (threadIdx.x < kWarp) {
          if (threadIdx.x == 0) {
            arrive(mailbox.barrier, blocks * static_cast<unsigned>(sizeof(uint4)));
          }
          if (threadIdx.x < blocks) {
            send(mailbox, rank, threadIdx.x,
                 make_uint4(__float_as_uint(all.largest), __float_as_uint(all.sum),
                            __float_as_uint(all.total), static_cast<unsigned>(all.beaten)));
          }
        }
        await(mailbox.barrier, exchanges / 2 % 2);
        ++exchanges;
        Statistics of_block = Statistics::none();
        if (lane < blocks) {
          const uint4 message = mailbox.messages[lane];
          of_block = {.largest = __uint_as_float(message.x),
                      .sum = __uint_as_float(message.y),
                      .total = __uint_as_float(message.z),
                      .beaten = static_cast<int>(message.w)};
        }
        all = merge_lanes<T>(of_block, has_total);
      }
      const CrossEntropyTerms& terms = rows.terms;
      const float s = terms.label_smoothing;
      if (thread == 0) {
        const float log_sum = scaled_log<T>(all.sum);
        // differences to the largest first: their digits would be lost behind it
        float loss = (1.0F - s) *
                     (log_sum - above<T>(capped<kCapped>(factors.target_logit, cap), all.largest));
        if (s != 0) {
          loss += s * (log_sum - above<T>(all.total / static_cast<float>(rows.vocab), all.largest));
        }
        loss = natural<T>(loss);
        if (terms.z_loss != 0) {
          const float lse = natural<T>(all.largest + log_sum);
          loss += terms.z_loss * lse * lse;
        }
        report(rows, n, factors.weight * loss, all.beaten == 0);
      }
      if (rows.writes) {
        float growth = 1;
        if (terms.z_loss != 0) {
          growth += 2.0F * terms.z_loss * natural<T>(all.largest + scaled_log<T>(all.sum));
        }
        const Gradient gradient = {.largest = all.largest,
                                   .factor = factors.scale * growth / all.sum,
                                   .shift = factors.scale * s / static_cast<float>(rows.vocab),
                                   .at_target = factors.scale * (1.0F - s)};
        T* const first_vector = row + parts.column(begin);
#  pragma unroll 1
        for (int first = in_block; first < mine_count; first += kResidentThreads * kUnroll) {
          uint4 raw[kUnroll];
#  pragma unroll
          for (int i = 0; i < kUnroll; ++i) {
            const int at = first + i * kResidentThreads;
            raw[i] = at < mine_count ? slots[at] : absent_vector<T>();
          }
#  pragma unroll
          for (int i = 0; i < kUnroll; ++i) {
            const int at = first + i * kResidentThreads;
            if (at < mine_count) {
              float values[kVector<T>];
              unpack<T>(raw[i], values);
#  pragma unroll
              for (int j = 0; j < kVector<T>; ++j) {
                values[j] = logit_gradient_above<T, kCapped>(values[j], false, gradient, cap);
              }
              store_whole(first_vector + static_cast<Index>(at) * kVector<T>, pack<T>(values));
            }
          }
        }
        if (edge.present) {
          row[edge.column] = from_f32<T>(
              logit_gradient_above<T, kCapped>(edge.logit, edge.column == target, gradient, cap));
        }
        const int among_vectors = target - parts.head;
        if (among_vectors >= 0 && share.has(among_vectors / kVector<T>)) {
          row[target] = from_f32<T>(
              logit_gradient_above<T, kCapped>(factors.target_logit, true, gradient, cap));
        }
        clear_columns(row, rows.vocab, rows.ld, thread, step);
      }
      __syncthreads();  // the slot has been read
    }
    if (threadIdx.x == 0 && next < count) {
      fetch_part(rows, next, next_target == rows.ignore_target, rank, part, slots, arrived);
    }
    n = next;
    target = next_target;
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
      make_opaque(raw[i]);
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
        store_whole(row + parts.column(at), logit_gradients<T, kCapped>(raw[i], gradient, cap));
      }
    }
  }
  finish_row<T, kCapped>(rows, row, parts, target, factors, edge, gradient, share, thread, step);
}

// ---- launches ---------------------------------------------------------------------------------

unsigned whole_warps(Index threads) {
  return static_cast<unsigned>(divide_up(threads, kWarp) * kWarp);
}

/// False if a row is too long for a cluster, or so short that nothing is gained. A cluster of the
/// fewest blocks whose parts are as small as wanted takes one row.
template <typename T, bool kCapped>
bool launch_resident(const Rows<T>& rows, Index count, Index vectors, Stream& stream) {
  constexpr auto kVectorBytes = static_cast<Index>(sizeof(uint4));
  Index blocks = 1;
  while (blocks < kMostBlocks && divide_up(vectors, blocks) * kVectorBytes > kWantedPartBytes) {
    blocks *= 2;
  }
  const Index part = divide_up(vectors, blocks);
  if (vectors < kResidentFewest || part * kVectorBytes > kMostPartBytes) {
    return false;
  }
  const auto kernel = cross_entropy_resident<T, kCapped>;
  const auto bytes = static_cast<std::size_t>(part * kVectorBytes);
  TESSERA_CHECK_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(bytes)));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(blocks);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(block_count(count * blocks, 1));
  config.blockDim = dim3(kResidentThreads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream.cuda_handle();
  config.attrs = &attribute;
  config.numAttrs = 1;
  TESSERA_CHECK_CUDA(cudaLaunchKernelEx(&config, kernel, rows, count, static_cast<int>(part)));
  return true;
}

template <typename T, bool kCapped>
void launch(const Rows<T>& rows, Index count, Stream& stream) {
  const Index vectors = divide_up(rows.vocab, kVector<T>);  // at most, whatever the alignment
  if (is_hopper_or_later() && launch_resident<T, kCapped>(rows, count, vectors, stream)) {
    return;
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
      launch<T, true>(rows, count, stream);
    } else {
      launch<T, false>(rows, count, stream);
    }
  });
}

}  // namespace tessera::cuda
