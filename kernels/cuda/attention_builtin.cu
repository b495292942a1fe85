// Our own attention for CUDA: f32 and bf16, any sequence length, heads up to 256. Tiles of B
// queries and B keys in shared memory, in f32, with an online softmax; every sum has one order,
// without atomics. For f32, for what cuDNN does not take, and to check cuDNN against; not the fast
// one.
//
// 256 threads, 16 x 16: thread (y, x) has the scores of rows y + 16 i and columns x + 16 j of a
// tile, and of its results rows y + 16 i, elements 4 x + 64 j .. + 3.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/attention_rows.h"
#include "kernels/attention_slices.h"
#include "kernels/cuda/attention_methods.h"
#include "kernels/cuda/launch.cuh"

namespace tessera::cuda {
namespace {

constexpr int kSide = 16;
constexpr int kThreads = kSide * kSide;
constexpr int kStripe = kSide * kQuad;  // elements of a head that a row of threads takes at once
// Rows in shared memory are one access longer: then rows side by side begin in other banks.
constexpr int kPad = kQuad;

/// Sizes, and where heads begin in the rows, given the first token of a part: of a sequence, or of
/// a document of one.
struct Problem {
  Index parts;
  Index stride;  // T: tokens of a sequence
  const std::int32_t*
      begins;      // [parts + 1] first tokens of documents, or null: parts are sequences
  Index sequence;  // tokens of the part at hand; of the longest on the host
  Index query_heads;
  Index kv_heads;
  Index head_dim;
  Index qk_row;  // elements of a row that q and k are read from
  Index window;  // as AttentionShape's
  float scale;

  [[nodiscard]] __host__ __device__ Index row() const {
    return (query_heads + 2 * kv_heads) * head_dim;
  }
  [[nodiscard]] __host__ __device__ Index out_row() const { return query_heads * head_dim; }
  [[nodiscard]] __host__ __device__ Index q_begin(Index token, Index h) const {
    return token * qk_row + h * head_dim;
  }
  [[nodiscard]] __host__ __device__ Index k_begin(Index token, Index kv) const {
    return token * qk_row + (query_heads + kv) * head_dim;
  }
  // in the fused rows: v and its gradient, and the gradients of q and k
  [[nodiscard]] __host__ __device__ Index d_q_begin(Index token, Index h) const {
    return token * row() + h * head_dim;
  }
  [[nodiscard]] __host__ __device__ Index d_k_begin(Index token, Index kv) const {
    return token * row() + (query_heads + kv) * head_dim;
  }
  [[nodiscard]] __host__ __device__ Index v_begin(Index token, Index kv) const {
    return token * row() + (query_heads + kv_heads + kv) * head_dim;
  }
  [[nodiscard]] __host__ __device__ Index out_begin(Index token, Index h) const {
    return token * out_row() + h * head_dim;
  }
  [[nodiscard]] __host__ __device__ Index lse_begin(Index token, Index h) const {
    return (token / stride * query_heads + h) * stride + token % stride;
  }
  [[nodiscard]] __host__ __device__ Index group() const { return query_heads / kv_heads; }
  [[nodiscard]] __host__ __device__ Index first_key(Index t) const {
    return window == 0 || t < window ? 0 : t - window + 1;
  }
  /// One more than the last query that sees key `s`.
  [[nodiscard]] __host__ __device__ Index end_of_queries(Index s) const {
    return window == 0 || sequence - s < window ? sequence : s + window;
  }
};

/// One thread block's part: a tile of one head of one sequence or document.
struct Part {
  Index token;  // the first of all
  Index head;
  Index block;  // along the sequence
};
/// `problem` becomes that of the part; the part may have no such block.
__device__ Part part_of_block(Index blocks, Index heads, Problem& problem) {
  const Index at = blockIdx.x;
  const Index number = at / blocks / heads;
  Part part = {.token = number * problem.stride, .head = at / blocks % heads, .block = at % blocks};
  if (problem.begins != nullptr) {
    part.token = problem.begins[number];
    problem.sequence = problem.begins[number + 1] - part.token;
  }
  return part;
}

__device__ int thread_x() {
  return static_cast<int>(threadIdx.x) % kSide;
}
__device__ int thread_y() {
  return static_cast<int>(threadIdx.x) / kSide;
}

/// B rows of up to D elements; what is beyond the head or the sequence is 0.
template <int D, int B>
struct Tile {
  float rows[B][D + kPad];
};

template <int D, int B, typename T>
__device__ void load(Tile<D, B>& tile, const T* __restrict__ head, Index first, Index stride,
                     const Problem& problem) {
  constexpr int kQuads = D / kQuad;
  for (int i = static_cast<int>(threadIdx.x); i < B * kQuads; i += kThreads) {
    const int r = i / kQuads;
    const int c = i % kQuads * kQuad;
    float4 values = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    if (first + r < problem.sequence && c < problem.head_dim) {
      values = load_quad<true>(head + (first + r) * stride, c, problem.head_dim);
    }
    *reinterpret_cast<float4*>(&tile.rows[r][c]) = values;
  }
}

/// A thread's scores: [i][j] of rows y + 16 i, columns x + 16 j.
template <int B>
struct Scores {
  static constexpr int kEach = B / kSide;
  float values[kEach][kEach];
};

/// scores = a b^T
template <int D, int B>
__device__ void products(Scores<B>& scores, const Tile<D, B>& a, const Tile<D, B>& b) {
  constexpr int kEach = Scores<B>::kEach;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      scores.values[i][j] = 0.0F;
    }
  }
#pragma unroll 4
  for (int d = 0; d < D; d += kQuad) {
    float4 left[kEach];
    float4 right[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      left[i] = *reinterpret_cast<const float4*>(&a.rows[thread_y() + kSide * i][d]);
      right[i] = *reinterpret_cast<const float4*>(&b.rows[thread_x() + kSide * i][d]);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        float sum = scores.values[i][j];
        sum = fmaf(left[i].x, right[j].x, sum);
        sum = fmaf(left[i].y, right[j].y, sum);
        sum = fmaf(left[i].z, right[j].z, sum);
        scores.values[i][j] = fmaf(left[i].w, right[j].w, sum);
      }
    }
  }
}

/// A thread's results: [i][j] of rows y + 16 i, elements 4 x + 64 j .. + 3.
template <int D, int B>
struct Results {
  static constexpr int kRows = B / kSide;
  static constexpr int kStripes = D / kStripe;
  float4 values[kRows][kStripes];
};

template <int D, int B>
__device__ void clear(Results<D, B>& results) {
#pragma unroll
  for (int i = 0; i < Results<D, B>::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < Results<D, B>::kStripes; ++j) {
      results.values[i][j] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    }
  }
}

__device__ void add_scaled(float4& sum, float weight, const float4& values) {
  sum.x = fmaf(weight, values.x, sum.x);
  sum.y = fmaf(weight, values.y, sum.y);
  sum.z = fmaf(weight, values.z, sum.z);
  sum.w = fmaf(weight, values.w, sum.w);
}

/// results += weights tile, where weights is [B, B] and tile [B, D]
template <int D, int B>
__device__ void accumulate(Results<D, B>& results, const Tile<B, B>& weights,
                           const Tile<D, B>& tile) {
  constexpr int kRows = Results<D, B>::kRows;
  constexpr int kStripes = Results<D, B>::kStripes;
#pragma unroll 2
  for (int n = 0; n < B; n += kQuad) {
    float4 w[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      w[i] = *reinterpret_cast<const float4*>(&weights.rows[thread_y() + kSide * i][n]);
    }
#pragma unroll
    for (int j = 0; j < kStripes; ++j) {
      const int c = thread_x() * kQuad + kStripe * j;
      const auto row = [&](int at) {
        return *reinterpret_cast<const float4*>(&tile.rows[n + at][c]);
      };
      const float4 row0 = row(0);
      const float4 row1 = row(1);
      const float4 row2 = row(2);
      const float4 row3 = row(3);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        add_scaled(results.values[i][j], w[i].x, row0);
        add_scaled(results.values[i][j], w[i].y, row1);
        add_scaled(results.values[i][j], w[i].z, row2);
        add_scaled(results.values[i][j], w[i].w, row3);
      }
    }
  }
}

/// Rows of the head that begin at `head`, each times factor[i].
template <int D, int B, typename T>
__device__ void store(const Results<D, B>& results, const float (&factor)[B / kSide], T* head,
                      Index first, Index stride, const Problem& problem) {
#pragma unroll
  for (int i = 0; i < Results<D, B>::kRows; ++i) {
    const Index t = first + thread_y() + kSide * i;
#pragma unroll
    for (int j = 0; j < Results<D, B>::kStripes; ++j) {
      const int c = thread_x() * kQuad + kStripe * j;
      if (t < problem.sequence && c < problem.head_dim) {
        const float4 sum = results.values[i][j];
        store_quad<true>(head + t * stride, c, problem.head_dim,
                         make_float4(sum.x * factor[i], sum.y * factor[i], sum.z * factor[i],
                                     sum.w * factor[i]));
      }
    }
  }
}

/// Over the 16 threads that share a row of scores: half a warp.
__device__ float row_max(float value) {
#pragma unroll
  for (int offset = kSide / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}
__device__ float row_sum(float value) {
#pragma unroll
  for (int offset = kSide / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}

template <int D, int B>
struct ForwardTiles {
  Tile<D, B> q;
  Tile<D, B> kv;  // keys, then values, of one block
  Tile<B, B> p;
};

template <int D, int B>
struct BackwardTiles {
  Tile<D, B> q;
  Tile<D, B> k;
  Tile<D, B> v;
  Tile<D, B> d_out;
  Tile<B, B> weights;
};

template <typename Tiles>
__device__ Tiles& shared_tiles() {
  extern __shared__ float4 shared_memory[];
  return *reinterpret_cast<Tiles*>(shared_memory);
}

/// out [N, Hq * D], lse [B, Hq, T] of q and k in qk [N, qk_row], v in qkv [N, (Hq + 2 Hkv) * D];
/// the two may be one. One block: a tile of queries of a head.
template <typename T, int D, int B>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(Problem problem, Index blocks, const T* __restrict__ qk,
                   const T* __restrict__ qkv, T* __restrict__ out, float* __restrict__ lse) {
  constexpr int kEach = B / kSide;
  auto& tiles = shared_tiles<ForwardTiles<D, B>>();
  Part part = part_of_block(blocks, problem.query_heads, problem);
  part.block = blocks - 1 - part.block;  // those with the most keys first
  if (part.block * B >= problem.sequence) {
    return;  // a whole block: shorter than the longest
  }
  const Index first = part.block * B;
  const Index kv_head = part.head / problem.group();
  load(tiles.q, qk + problem.q_begin(part.token, part.head), first, problem.qk_row, problem);

  Results<D, B> results;
  clear(results);
  float largest[kEach];
  float sum[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    largest[i] = -INFINITY;
    sum[i] = 0.0F;
  }

  for (Index keys = problem.first_key(first) / B * B; keys <= first; keys += B) {
    __syncthreads();  // the values and weights of the last block have been read
    load(tiles.kv, qk + problem.k_begin(part.token, kv_head), keys, problem.qk_row, problem);
    __syncthreads();
    Scores<B> scores;
    products(scores, tiles.q, tiles.kv);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int r = thread_y() + kSide * i;
      float best = largest[i];
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const Index s = keys + thread_x() + kSide * j;
        const bool seen =
            s <= first + r && s < problem.sequence && s >= problem.first_key(first + r);
        scores.values[i][j] = seen ? scores.values[i][j] * problem.scale : -INFINITY;
        best = fmaxf(best, scores.values[i][j]);
      }
      best = row_max(best);
      // Finite from the first block on that has a key in the row's window.
      const float base = best == -INFINITY ? 0.0F : best;
      float block_sum = 0.0F;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const float p = expf(scores.values[i][j] - base);
        tiles.p.rows[r][thread_x() + kSide * j] = p;
        block_sum += p;
      }
      const float shrink = expf(largest[i] - base);
      sum[i] = sum[i] * shrink + row_sum(block_sum);
      largest[i] = best;
#pragma unroll
      for (int j = 0; j < Results<D, B>::kStripes; ++j) {
        float4& value = results.values[i][j];
        value = make_float4(value.x * shrink, value.y * shrink, value.z * shrink, value.w * shrink);
      }
    }
    __syncthreads();  // the keys have been read, the weights are there
    load(tiles.kv, qkv + problem.v_begin(part.token, kv_head), keys, problem.row(), problem);
    __syncthreads();
    accumulate(results, tiles.p, tiles.kv);
  }

  float factor[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    factor[i] = 1.0F / sum[i];
    const Index t = first + thread_y() + kSide * i;
    if (thread_x() == 0 && t < problem.sequence) {
      lse[problem.lse_begin(part.token, part.head) + t] = largest[i] + logf(sum[i]);
    }
  }
  store(results, factor, out + problem.out_begin(part.token, part.head), first, problem.out_row(),
        problem);
}

/// row_products [B, Hq, T] = sum over a head's elements of d_out * out, both [N, Hq * D]. One warp
/// each.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    row_products_kernel(Problem problem, Index rows, const T* __restrict__ out,
                        const T* __restrict__ d_out, float* __restrict__ row_products) {
  const Index at =
      static_cast<Index>(blockIdx.x) * (kThreads / kWarp) + static_cast<Index>(threadIdx.x) / kWarp;
  const Index lane = threadIdx.x % kWarp;
  if (at >= rows) {
    return;
  }
  const Index t = at % problem.stride;
  const Index h = at / problem.stride % problem.query_heads;
  const Index b = at / problem.stride / problem.query_heads;
  const Index begin = problem.out_begin(b * problem.stride + t, h);
  float sum = 0.0F;
  for (Index c = lane; c < problem.head_dim; c += kWarp) {
    sum = fmaf(to_f32(out[begin + c]), to_f32(d_out[begin + c]), sum);
  }
  sum = warp_sum(sum);
  if (lane == 0) {
    row_products[at] = sum;
  }
}

/// What the backward kernels read of a head, and how they cut.
template <typename T>
struct BackwardInputs {
  const T* qk;                // [N, qk_row] q and k
  const T* qkv;               // [N, (Hq + 2 Hkv) * D] v
  const T* d_out;             // [N, Hq * D]
  const float* lse;           // [B, Hq, T]
  const float* row_products;  // [B, Hq, T]
};

/// The weights p and the gradients ds of the scores of the tiles at hand, from q k^T and d_out v^T:
///   p = exp(scale * score - lse)      ds = p * (dp - row_product) * scale
template <int B>
__device__ void weigh(Scores<B>& p, Scores<B>& ds, Index queries, Index keys,
                      const float* __restrict__ lse, const float* __restrict__ row_products,
                      const Problem& problem) {
  constexpr int kEach = Scores<B>::kEach;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const Index t = queries + thread_y() + kSide * i;
    const bool is_row = t < problem.sequence;
    const float row_lse = is_row ? lse[t] : 0.0F;
    const float row_product = is_row ? row_products[t] : 0.0F;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const Index s = keys + thread_x() + kSide * j;
      const bool seen = is_row && s <= t && s >= problem.first_key(t);
      const float weight = seen ? expf(p.values[i][j] * problem.scale - row_lse) : 0.0F;
      p.values[i][j] = weight;
      ds.values[i][j] = seen ? weight * (ds.values[i][j] - row_product) * problem.scale : 0.0F;
    }
  }
}

/// d_k and d_v in d_qkv. One block: a tile of keys of one key/value head, over all later queries of
/// its query heads, in their order.
template <typename T, int D, int B>
__global__ void __launch_bounds__(kThreads)
    backward_kv_kernel(Problem problem, Index blocks, BackwardInputs<T> in, T* __restrict__ d_qkv) {
  constexpr int kEach = B / kSide;
  auto& tiles = shared_tiles<BackwardTiles<D, B>>();
  // those with the most queries first
  const Part part = part_of_block(blocks, problem.kv_heads, problem);
  const Index keys = part.block * B;
  if (keys >= problem.sequence) {
    return;  // a whole block: shorter than the longest
  }
  load(tiles.k, in.qk + problem.k_begin(part.token, part.head), keys, problem.qk_row, problem);
  load(tiles.v, in.qkv + problem.v_begin(part.token, part.head), keys, problem.row(), problem);

  Results<D, B> d_k;
  Results<D, B> d_v;
  clear(d_k);
  clear(d_v);
  // Transposed: row s of the weights is that of a key.
  const auto keep = [&](const Scores<B>& scores) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        tiles.weights.rows[thread_x() + kSide * j][thread_y() + kSide * i] = scores.values[i][j];
      }
    }
  };
  for (Index g = 0; g < problem.group(); ++g) {
    const Index h = part.head * problem.group() + g;
    const float* lse = in.lse + problem.lse_begin(part.token, h);
    const float* row_products = in.row_products + problem.lse_begin(part.token, h);
    const Index end = problem.end_of_queries(keys + B - 1);
    for (Index queries = keys; queries < end; queries += B) {
      __syncthreads();  // the tiles of the last block have been read
      load(tiles.q, in.qk + problem.q_begin(part.token, h), queries, problem.qk_row, problem);
      load(tiles.d_out, in.d_out + problem.out_begin(part.token, h), queries, problem.out_row(),
           problem);
      __syncthreads();
      Scores<B> p;
      Scores<B> ds;
      products(p, tiles.q, tiles.k);
      products(ds, tiles.d_out, tiles.v);
      weigh(p, ds, queries, keys, lse, row_products, problem);
      keep(p);
      __syncthreads();
      accumulate(d_v, tiles.weights, tiles.d_out);
      __syncthreads();
      keep(ds);
      __syncthreads();
      accumulate(d_k, tiles.weights, tiles.q);
    }
  }
  float one[kEach];
#pragma unroll
  for (float& factor : one) {
    factor = 1.0F;
  }
  store(d_k, one, d_qkv + problem.d_k_begin(part.token, part.head), keys, problem.row(), problem);
  store(d_v, one, d_qkv + problem.v_begin(part.token, part.head), keys, problem.row(), problem);
}

/// d_q in d_qkv. One block: a tile of queries of a head, over all earlier keys.
template <typename T, int D, int B>
__global__ void __launch_bounds__(kThreads)
    backward_q_kernel(Problem problem, Index blocks, BackwardInputs<T> in, T* __restrict__ d_qkv) {
  constexpr int kEach = B / kSide;
  auto& tiles = shared_tiles<BackwardTiles<D, B>>();
  Part part = part_of_block(blocks, problem.query_heads, problem);
  part.block = blocks - 1 - part.block;  // those with the most keys first
  if (part.block * B >= problem.sequence) {
    return;  // a whole block: shorter than the longest
  }
  const Index queries = part.block * B;
  const Index kv_head = part.head / problem.group();
  load(tiles.q, in.qk + problem.q_begin(part.token, part.head), queries, problem.qk_row, problem);
  load(tiles.d_out, in.d_out + problem.out_begin(part.token, part.head), queries, problem.out_row(),
       problem);

  Results<D, B> d_q;
  clear(d_q);
  for (Index keys = problem.first_key(queries) / B * B; keys <= queries; keys += B) {
    __syncthreads();  // the keys and weights of the last block have been read
    load(tiles.k, in.qk + problem.k_begin(part.token, kv_head), keys, problem.qk_row, problem);
    load(tiles.v, in.qkv + problem.v_begin(part.token, kv_head), keys, problem.row(), problem);
    __syncthreads();
    Scores<B> p;
    Scores<B> ds;
    products(p, tiles.q, tiles.k);
    products(ds, tiles.d_out, tiles.v);
    weigh(p, ds, queries, keys, in.lse + problem.lse_begin(part.token, part.head),
          in.row_products + problem.lse_begin(part.token, part.head), problem);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        tiles.weights.rows[thread_y() + kSide * i][thread_x() + kSide * j] = ds.values[i][j];
      }
    }
    __syncthreads();
    accumulate(d_q, tiles.weights, tiles.k);
  }
  float one[kEach];
#pragma unroll
  for (float& factor : one) {
    factor = 1.0F;
  }
  store(d_q, one, d_qkv + problem.d_q_begin(part.token, part.head), queries, problem.row(),
        problem);
}

/// Of either pass's arguments.
template <typename Args>
Problem problem_of(const Args& args, const QkRows& qk) {
  const AttentionShape& shape = args.shape;
  Problem problem = {.parts = shape.batch,
                     .stride = shape.sequence,
                     .begins = nullptr,
                     .sequence = shape.sequence,
                     .query_heads = shape.query_heads,
                     .kv_heads = shape.kv_heads,
                     .head_dim = shape.head_dim,
                     .qk_row = qk.width,
                     .window = shape.window,
                     .scale = args.scale};
  if (args.documents.are_given()) {
    problem.parts = args.documents.count();
    problem.begins = data_as<std::int32_t>(args.documents.begins);
    problem.sequence = 0;
    const std::span<const std::int32_t> begins = args.documents.host_begins;
    for (std::size_t i = 0; i + 1 < begins.size(); ++i) {
      problem.sequence = std::max<Index>(problem.sequence, begins[i + 1] - begins[i]);
    }
  }
  return problem;
}

/// Calls `body` with the tile sizes for heads of `head_dim`: integral constants D, B of the forward
/// and B of the backward pass. Chosen so that the tiles fit in the 99 KiB that every card since
/// Ampere has.
template <typename Body>
void with_tiles(Index head_dim, Body body) {
  if (head_dim <= 64) {
    body(std::integral_constant<int, 64>{}, std::integral_constant<int, 64>{},
         std::integral_constant<int, 64>{});
  } else if (head_dim <= 128) {
    body(std::integral_constant<int, 128>{}, std::integral_constant<int, 64>{},
         std::integral_constant<int, 32>{});
  } else {
    static_assert(kMaxCudaHeadDim == 256);
    body(std::integral_constant<int, 256>{}, std::integral_constant<int, 32>{},
         std::integral_constant<int, 16>{});
  }
}

template <typename Tiles, typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), Index blocks, Stream& stream, Arguments... arguments) {
  constexpr int kTileBytes = static_cast<int>(sizeof(Tiles));
  static_assert(kTileBytes <= 99 * 1024);
  TESSERA_CHECK_CUDA(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kTileBytes));
  kernel<<<block_count(blocks, 1), kThreads, kTileBytes, stream.cuda_handle()>>>(arguments...);
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

}  // namespace

void builtin_attention_forward(const AttentionForwardArgs& args, Stream& stream) {
  const QkRows qk = qk_rows(args);
  const Problem problem = problem_of(args, qk);
  with_element_type(args.qkv.dtype, "qkv", [&](auto element) {
    using T = decltype(element);
    with_tiles(problem.head_dim, [&](auto head_dim, auto tile, auto /*backward_tile*/) {
      constexpr int D = decltype(head_dim)::value;
      constexpr int B = decltype(tile)::value;
      const Index blocks = divide_up(problem.sequence, B);
      launch<ForwardTiles<D, B>>(forward_kernel<T, D, B>,
                                 blocks * problem.query_heads * problem.parts, stream, problem,
                                 blocks, data_as<T>(qk.rows), data_as<T>(args.qkv),
                                 data_as<T>(args.out), data_as<float>(args.lse));
    });
  });
}

void builtin_attention_backward(const AttentionBackwardArgs& args, Stream& stream) {
  const QkRows qk = qk_rows(args);
  const Problem problem = problem_of(args, qk);
  const Index rows = args.shape.batch * args.shape.query_heads * args.shape.sequence;
  auto* row_products = static_cast<float*>(args.workspace.data);  // [B, Hq, T]
  with_element_type(args.qkv.dtype, "qkv", [&](auto element) {
    using T = decltype(element);
    row_products_kernel<T>
        <<<block_count(rows, kThreads / kWarp), kThreads, 0, stream.cuda_handle()>>>(
            problem, rows, data_as<T>(args.out), data_as<T>(args.d_out), row_products);
    TESSERA_CHECK_CUDA(cudaGetLastError());
    const BackwardInputs<T> in{data_as<T>(qk.rows), data_as<T>(args.qkv), data_as<T>(args.d_out),
                               data_as<float>(args.lse), row_products};
    with_tiles(problem.head_dim, [&](auto head_dim, auto /*forward_tile*/, auto tile) {
      constexpr int D = decltype(head_dim)::value;
      constexpr int B = decltype(tile)::value;
      const Index blocks = divide_up(problem.sequence, B);
      launch<BackwardTiles<D, B>>(backward_kv_kernel<T, D, B>,
                                  blocks * problem.kv_heads * problem.parts, stream, problem,
                                  blocks, in, data_as<T>(args.d_qkv));
      launch<BackwardTiles<D, B>>(backward_q_kernel<T, D, B>,
                                  blocks * problem.query_heads * problem.parts, stream, problem,
                                  blocks, in, data_as<T>(args.d_qkv));
    });
  });
}

}  // namespace tessera::cuda
