// Fast kernels for heads whose halves are whole 16-byte vectors, 32 of them at most (D up to 512 in
// bf16, 256 in f32): a few lanes hold a head in registers, the same lane both elements of a pair.
// Other heads go through plain loops, a warp a head.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/partial_rows.h"
#include "kernels/cuda/rotary_heads.cuh"
#include "kernels/rotary.h"
#include "kernels/workspaces.h"

namespace tessera::cuda {
namespace {

constexpr int kWarps = 4;  // of a block
constexpr int kThreads = kWarps * kWarp;
// Forward: heads of a lane in flight, and blocks of a multiprocessor, which hold the registers at
// 96; without norm the compiler is better left alone. Measured: jobs/bench/results/notes.md, "three
// heads of a lane".
template <bool kNorm>
inline constexpr int kHeadsInFlight = kNorm ? 3 : 2;
template <bool kNorm>
inline constexpr int kLeastBlocks = kNorm ? 5 : 0;
// Backward with QK-norm. More warps of a multiprocessor leave too few registers, fewer too little
// in flight. Measured: jobs/bench/results/notes.md, "Rotary's and RMSNorm's backward pass".
constexpr int kWarpsOfMultiprocessor = 20;  // with 96 registers a thread

// ---- forward, and backward without QK-norm ----------------------------------------------------

template <typename T>
struct ForwardTensors {
  const T* qkv;         // [N, (Hq + 2 Hkv) * D]
  T* out;               // [N, out_width] q heads, k heads written; may be qkv
  Index out_width;      // elements from row to row
  const float* cosine;  // [T, D/2]
  const float* sine;
  const T* q_gain;  // [D]; not read without norm
  const T* k_gain;
  const std::int32_t* positions;  // [N], or null: n % T
  float sign;                     // -1: backward
  float eps;
};

/// Of token `n`.
template <typename Tensors>
[[nodiscard]] __device__ __forceinline__ Index position_of(const Tensors& t, Index n,
                                                           Index sequence) {
  return t.positions == nullptr ? n % sequence : t.positions[n];
}

// A warp takes a token and goes over its heads.
template <typename T, bool kNorm>
__global__ void __launch_bounds__(kThreads, kLeastBlocks<kNorm>)
    rotary_forward_heads(ForwardTensors<T> t, Heads heads) {
  const Index n = static_cast<Index>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (n >= heads.tokens) {
    return;  // a whole warp
  }
  constexpr int kAtOnce = kHeadsInFlight<kNorm>;
  const Place place = place_of_lane(heads);
  const Index dim = heads.dim;
  const T* row = t.qkv + n * heads.row_width();
  T* out_row = t.out + n * t.out_width;
  Angles<T> angles = {};
  Halves q_gain = {};
  Halves k_gain = {};
  if (place.active) {
    load_angles<T>(angles, t.cosine, t.sine,
                   position_of(t, n, heads.sequence) * (dim / 2) + place.at * kVector<T>);
    if constexpr (kNorm) {
      q_gain = load_halves(t.q_gain, place.at, dim);
      k_gain = load_halves(t.k_gain, place.at, dim);
    }
  }
  for (Index first = place.slot; first - place.slot < heads.rotated();
       first += place.slots * kAtOnce) {
    Halves data[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const Index head = first + i * place.slots;
      if (place.active && head < heads.rotated()) {
        data[i] = load_halves(row + head * dim, place.at, dim);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first - place.slot + i * place.slots >= heads.rotated()) {
        break;  // a whole warp
      }
      const Index head = first + i * place.slots;
      const bool present = place.active && head < heads.rotated();
      float r = 1;
      if constexpr (kNorm) {
        r = reciprocal_rms(head_sum(sum_of_squares<T>(data[i]), heads.lanes), heads.share, t.eps);
      }
      float low[kVector<T>];
      float high[kVector<T>];
      unpack<T>(data[i].low, low);
      unpack<T>(data[i].high, high);
      if constexpr (kNorm) {
        float low_gain[kVector<T>];
        float high_gain[kVector<T>];
        const bool is_query = head < heads.query_heads;
        unpack<T>(choose(is_query, q_gain.low, k_gain.low), low_gain);
        unpack<T>(choose(is_query, q_gain.high, k_gain.high), high_gain);
#pragma unroll
        for (int j = 0; j < kVector<T>; ++j) {
          low[j] *= r * low_gain[j];
          high[j] *= r * high_gain[j];
        }
      }
#pragma unroll
      for (int j = 0; j < kVector<T>; ++j) {
        const float sine = t.sign * angles.sine[j];
        const float a = low[j];
        const float b = high[j];
        low[j] = a * angles.cosine[j] - b * sine;
        high[j] = b * angles.cosine[j] + a * sine;
      }
      if (present) {
        store_halves(out_row + head * dim, place.at, dim,
                     Halves{.low = pack<T>(low), .high = pack<T>(high)});
      }
    }
  }
}

// ---- backward with QK-norm --------------------------------------------------------------------

template <typename T>
struct BackwardTensors {
  T* d_qkv;             // [N, (Hq + 2 Hkv) * D] q and k in place
  const float* cosine;  // [T, D/2]
  const float* sine;
  const T* q_gain;  // [D]
  const T* k_gain;
  const T* qkv;    // [N, (Hq + 2 Hkv) * D] as it came into forward
  float* partial;  // [gridDim.x, 2 D] written: gradients of the gains of q, then of k
  const std::int32_t* positions;  // [N], or null: n % T
  float eps;
};

// A fixed number of blocks goes over the heads, counted through all tokens, those of q and those of
// k each for themselves. The heads that a warp takes at once may be of several tokens.
template <typename T>
__global__ void __launch_bounds__(kWarpsOfMultiprocessor* kWarp)
    rotary_backward_heads(BackwardTensors<T> t, Heads heads, BlockWarps warps) {
  extern __shared__ uint4 dynamic[];  // vectors, so that they begin at a multiple of 16 bytes
  const Place place = place_of_lane(heads);
  const auto dim = static_cast<int>(heads.dim);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const bool is_query = warp < warps.query;
  const int first_head = is_query ? 0 : static_cast<int>(heads.query_heads);
  const auto head_count = static_cast<int>(is_query ? heads.query_heads : heads.kv_heads);
  const int team = is_query ? warps.query : warps.kv;
  const auto sequence = static_cast<int>(heads.sequence);
  const int begin =
      (static_cast<int>(blockIdx.x) * team + (is_query ? warp : warp - warps.query)) * place.slots +
      place.slot;
  const int stride = static_cast<int>(gridDim.x) * team * place.slots;
  const HeadStep step = {.tokens = stride / head_count,
                         .heads = stride % head_count,
                         .positions = stride / head_count % sequence};
  HeadWalk now = {.token = begin / head_count,
                  .head = begin % head_count,
                  .position = begin / head_count % sequence};
  Halves gain = {};
  if (place.active) {
    gain = load_halves(is_query ? t.q_gain : t.k_gain, place.at, dim);
  }
  GainGradient<T> d_gain = {};
  while (__any_sync(kAllLanes, now.token < heads.tokens) != 0) {
    const bool present = place.active && now.token < heads.tokens;
    const Index at = static_cast<Index>(now.token) * heads.row_width() +
                     static_cast<Index>(first_head + now.head) * dim;
    T* to = t.d_qkv + at;
    Angles<T> angles = {};
    Halves d = {};
    Halves x = {};
    if (present) {
      d = load_halves(to, place.at, dim);
      x = load_halves(t.qkv + at, place.at, dim);
      const Index position = t.positions == nullptr ? now.position : t.positions[now.token];
      load_angles<T>(angles, t.cosine, t.sine, position * (dim / 2) + place.at * kVector<T>);
    }
    rotary_backward_part<T>(d, x, gain, angles, heads, t.eps, present, d_gain);
    if (present) {
      store_halves(to, place.at, dim, d);
    }
    walk(now, step, head_count, sequence);
  }
  trigger_next_kernel();
  // over the warp's heads, then over the warps; the data need no first barrier, measured with it
  auto* of_warps = reinterpret_cast<float*>(dynamic);  // [warps, D]
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kVector<T>; ++j) {
    for (int offset = heads.lanes; offset < kWarp; offset *= 2) {
      d_gain.low[j] += __shfl_xor_sync(kAllLanes, d_gain.low[j], offset);
      d_gain.high[j] += __shfl_xor_sync(kAllLanes, d_gain.high[j], offset);
    }
    if (place.slot == 0 && place.active) {
      of_warps[warp * dim + place.at * kVector<T> + j] = d_gain.low[j];
      of_warps[warp * dim + dim / 2 + place.at * kVector<T> + j] = d_gain.high[j];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * dim; i += static_cast<int>(blockDim.x)) {
    const bool of_query = i < dim;
    const float* column = of_warps + (of_query ? i : warps.query * dim + i - dim);
    const int count = of_query ? warps.query : warps.kv;
    float sum = column[0];
    for (int w = 1; w < count; ++w) {
      sum += column[w * dim];
    }
    t.partial[static_cast<Index>(blockIdx.x) * 2 * dim + i] = sum;
  }
}

// ---- heads of any even size -------------------------------------------------------------------

/// A warp's sum of squares of one head.
template <typename T>
[[nodiscard]] __device__ float head_squares(const T* head, Index dim) {
  float sum = 0;
  for (Index i = threadIdx.x % kWarp; i < dim; i += kWarp) {
    const float value = to_f32(head[i]);
    sum = fmaf(value, value, sum);
  }
  return warp_sum(sum);
}

// A warp a token. Every lane reads and writes whole pairs.
template <typename T, bool kNorm>
__global__ void __launch_bounds__(kThreads) rotary_forward_any(ForwardTensors<T> t, Heads heads) {
  const Index n = static_cast<Index>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (n >= heads.tokens) {
    return;  // a whole warp
  }
  const Index half = heads.dim / 2;
  const Index angle = position_of(t, n, heads.sequence) * half;
  for (Index h = 0; h < heads.rotated(); ++h) {
    const T* head = t.qkv + n * heads.row_width() + h * heads.dim;
    T* out = t.out + n * t.out_width + h * heads.dim;
    const T* gain = h < heads.query_heads ? t.q_gain : t.k_gain;
    float r = 1;
    if constexpr (kNorm) {
      r = reciprocal_rms(head_squares(head, heads.dim), heads.share, t.eps);
    }
    for (Index i = threadIdx.x % kWarp; i < half; i += kWarp) {
      float a = to_f32(head[i]);
      float b = to_f32(head[i + half]);
      if constexpr (kNorm) {
        a *= r * to_f32(gain[i]);
        b *= r * to_f32(gain[i + half]);
      }
      const float cosine = t.cosine[angle + i];
      const float sine = t.sign * t.sine[angle + i];
      out[i] = from_f32<T>(a * cosine - b * sine);
      out[i + half] = from_f32<T>(b * cosine + a * sine);
    }
  }
}

// One warp a block, which keeps its sums in its partial row: a pair's columns belong to one lane.
template <typename T>
__global__ void __launch_bounds__(kWarp) rotary_backward_any(BackwardTensors<T> t, Heads heads) {
  const int lane = static_cast<int>(threadIdx.x);
  const Index dim = heads.dim;
  const Index half = dim / 2;
  float* partial = t.partial + static_cast<Index>(blockIdx.x) * 2 * dim;
  for (Index i = lane; i < half; i += kWarp) {
    partial[i] = 0;
    partial[i + half] = 0;
    partial[i + dim] = 0;
    partial[i + dim + half] = 0;
  }
  for (Index n = blockIdx.x; n < heads.tokens; n += gridDim.x) {
    const Index angle = position_of(t, n, heads.sequence) * half;
    for (Index h = 0; h < heads.rotated(); ++h) {
      const Index at = n * heads.row_width() + h * dim;
      T* d = t.d_qkv + at;
      const T* x = t.qkv + at;
      const bool is_query = h < heads.query_heads;
      const T* gain = is_query ? t.q_gain : t.k_gain;
      float* d_gain = is_query ? partial : partial + dim;
      const float r = reciprocal_rms(head_squares(x, dim), heads.share, t.eps);
      float product = 0;
      for (Index i = lane; i < half; i += kWarp) {
        const float a = to_f32(d[i]);
        const float b = to_f32(d[i + half]);
        const float cosine = t.cosine[angle + i];
        const float sine = t.sine[angle + i];
        product += to_f32(gain[i]) * (a * cosine + b * sine) * to_f32(x[i]) +
                   to_f32(gain[i + half]) * (b * cosine - a * sine) * to_f32(x[i + half]);
      }
      const float mean = warp_sum(product) * r * heads.share;
      for (Index i = lane; i < half; i += kWarp) {
        const float a = to_f32(d[i]);
        const float b = to_f32(d[i + half]);
        const float cosine = t.cosine[angle + i];
        const float sine = t.sine[angle + i];
        const float d_low = a * cosine + b * sine;
        const float d_high = b * cosine - a * sine;
        const float low = to_f32(x[i]) * r;
        const float high = to_f32(x[i + half]) * r;
        d_gain[i] += d_low * low;
        d_gain[i + half] += d_high * high;
        d[i] = from_f32<T>(r * (to_f32(gain[i]) * d_low - low * mean));
        d[i + half] = from_f32<T>(r * (to_f32(gain[i + half]) * d_high - high * mean));
      }
    }
  }
}

// ---- launches ---------------------------------------------------------------------------------

template <typename T>
Heads heads_of(const RotaryShape& shape) {
  Heads heads = {.tokens = shape.tokens,
                 .sequence = shape.sequence,
                 .query_heads = shape.query_heads,
                 .kv_heads = shape.kv_heads,
                 .dim = shape.head_dim,
                 .share = 1.0F / static_cast<float>(shape.head_dim),
                 .vectors = 0,
                 .lanes = 0};
  const Index half = shape.head_dim / 2;
  if (half % kVector<T> == 0 && half / kVector<T> <= kWarp) {
    heads.vectors = static_cast<int>(half / kVector<T>);
    heads.lanes = 1;
    while (heads.lanes < heads.vectors) {
      heads.lanes *= 2;
    }
  }
  return heads;
}

template <typename T, bool kNorm>
void launch_forward(const ForwardTensors<T>& tensors, const RotaryShape& shape, Stream& stream) {
  const Heads heads = heads_of<T>(shape);
  const unsigned blocks = block_count(shape.tokens, kWarps);
  if (heads.lanes > 0 && is_vector_aligned(tensors.qkv) && is_vector_aligned(tensors.out) &&
      is_vector_aligned(tensors.cosine) && is_vector_aligned(tensors.sine) &&
      is_vector_aligned(tensors.q_gain) && is_vector_aligned(tensors.k_gain)) {
    rotary_forward_heads<T, kNorm><<<blocks, kThreads, 0, stream.cuda_handle()>>>(tensors, heads);
  } else {
    rotary_forward_any<T, kNorm><<<blocks, kThreads, 0, stream.cuda_handle()>>>(tensors, heads);
  }
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

/// Blocks of a multiprocessor, and their warps.
struct Residents {
  int blocks;
  BlockWarps warps;
};
/// Those that end soonest: as many warps as there is room for, in the proportion of q to k.
Residents residents_of(const RotaryShape& shape, int most_blocks) {
  Residents best = {};
  double least = 0;
  for (int blocks = most_blocks; blocks > 0; --blocks) {
    const int warps = kWarpsOfMultiprocessor / blocks;
    for (int kv = 1; kv < warps; ++kv) {
      const int query = warps - kv;
      const double rounds = std::max(static_cast<double>(shape.query_heads) / query,
                                     static_cast<double>(shape.kv_heads) / kv) /
                            blocks;
      if (least == 0 || rounds < least) {
        least = rounds;
        best = {.blocks = blocks, .warps = {.query = query, .kv = kv}};
      }
    }
  }
  return best;
}

// Returns the number of partial rows: constants, not read off the card, as for kPartialRows.
template <typename T>
Index launch_backward(const BackwardTensors<T>& tensors, const RotaryShape& shape, Stream& stream) {
  constexpr int kMostBlocks = 4;  // of a multiprocessor
  constexpr Index kMultiprocessors = kPartialRows / kMostBlocks;
  constexpr Index kMostTokens = Index{1} << 30;  // of the kernel that counts in 32 bits
  const Heads heads = heads_of<T>(shape);
  Index blocks = 0;
  if (heads.lanes > 0 && std::max(shape.tokens, shape.sequence) <= kMostTokens &&
      is_vector_aligned(tensors.d_qkv) && is_vector_aligned(tensors.cosine) &&
      is_vector_aligned(tensors.sine) && is_vector_aligned(tensors.q_gain) &&
      is_vector_aligned(tensors.k_gain) && is_vector_aligned(tensors.qkv)) {
    const Residents residents = residents_of(shape, kMostBlocks);
    const int warps = residents.warps.query + residents.warps.kv;
    blocks = std::min(shape.tokens, kMultiprocessors * residents.blocks);
    const std::size_t bytes = static_cast<std::size_t>(warps) * shape.head_dim * sizeof(float);
    rotary_backward_heads<T>
        <<<block_count(blocks, 1), warps * kWarp, bytes, stream.cuda_handle()>>>(tensors, heads,
                                                                                 residents.warps);
  } else {
    blocks = std::min(shape.tokens, kPartialRows);
    rotary_backward_any<T>
        <<<block_count(blocks, 1), kWarp, 0, stream.cuda_handle()>>>(tensors, heads);
  }
  TESSERA_CHECK_CUDA(cudaGetLastError());
  return blocks;
}

void require_shape(const RotaryShape& shape) {
  TESSERA_REQUIRE(shape.tokens >= 0 && shape.sequence > 0 && shape.query_heads > 0 &&
                      shape.kv_heads > 0 && shape.head_dim > 0 && shape.head_dim % 2 == 0,
                  "rotary takes positive extents and an even head_dim");
}

/// Of either pass's arguments; null where they have none.
template <typename Args>
const std::int32_t* positions_of(const Args& args) {
  if (args.positions.data != nullptr) {
    require_tensor(args.positions, DType::i32, args.shape.tokens, "positions");
  }
  return static_cast<const std::int32_t*>(args.positions.data);
}

}  // namespace

void rotary_forward(const RotaryForwardArgs& args, Stream& stream) {
  const RotaryShape& shape = args.shape;
  require_shape(shape);
  const DType dtype = args.qkv.dtype;
  const Index rotated_width = (shape.query_heads + shape.kv_heads) * shape.head_dim;
  const Index row_width = rotated_width + shape.kv_heads * shape.head_dim;
  const bool normed = args.q_gain.data != nullptr;
  require_tensor(args.qkv, dtype, shape.tokens * row_width, "qkv");
  require_room(args.cos, DType::f32, shape.sequence * (shape.head_dim / 2), "cos");
  require_room(args.sin, DType::f32, shape.sequence * (shape.head_dim / 2), "sin");
  TESSERA_REQUIRE(normed == (args.k_gain.data != nullptr), "QK-norm takes both gains or none");
  if (normed) {
    require_tensor(args.q_gain, dtype, shape.head_dim, "q_gain");
    require_tensor(args.k_gain, dtype, shape.head_dim, "k_gain");
  }
  const bool apart = args.rotated_qk.data != nullptr;
  if (apart) {
    require_tensor(args.rotated_qk, dtype, shape.tokens * rotated_width, "rotated_qk");
  }
  if (shape.tokens == 0) {
    return;
  }
  with_element_type(dtype, "qkv", [&](auto zero) {
    using T = decltype(zero);
    const ForwardTensors<T> tensors = {.qkv = data_as<T>(args.qkv),
                                       .out = data_as<T>(apart ? args.rotated_qk : args.qkv),
                                       .out_width = apart ? rotated_width : row_width,
                                       .cosine = data_as<float>(args.cos),
                                       .sine = data_as<float>(args.sin),
                                       .q_gain = static_cast<const T*>(args.q_gain.data),
                                       .k_gain = static_cast<const T*>(args.k_gain.data),
                                       .positions = positions_of(args),
                                       .sign = 1,
                                       .eps = args.eps};
    if (normed) {
      launch_forward<T, true>(tensors, shape, stream);
    } else {
      launch_forward<T, false>(tensors, shape, stream);
    }
  });
}

void rotary_backward(const RotaryBackwardArgs& args, Stream& stream) {
  const RotaryShape& shape = args.shape;
  require_shape(shape);
  const DType dtype = args.d_qkv.dtype;
  const Index rotated_width = (shape.query_heads + shape.kv_heads) * shape.head_dim;
  const Index row_width = rotated_width + shape.kv_heads * shape.head_dim;
  const bool normed = args.q_gain.data != nullptr;
  require_tensor(args.d_qkv, dtype, shape.tokens * row_width, "d_qkv");
  require_room(args.cos, DType::f32, shape.sequence * (shape.head_dim / 2), "cos");
  require_room(args.sin, DType::f32, shape.sequence * (shape.head_dim / 2), "sin");
  TESSERA_REQUIRE(normed == (args.k_gain.data != nullptr), "QK-norm takes both gains or none");
  if (!normed) {
    if (shape.tokens > 0) {
      with_element_type(dtype, "d_qkv", [&](auto zero) {
        using T = decltype(zero);
        launch_forward<T, false>({.qkv = data_as<T>(args.d_qkv),
                                  .out = data_as<T>(args.d_qkv),
                                  .out_width = row_width,
                                  .cosine = data_as<float>(args.cos),
                                  .sine = data_as<float>(args.sin),
                                  .q_gain = nullptr,
                                  .k_gain = nullptr,
                                  .positions = positions_of(args),
                                  .sign = -1,
                                  .eps = args.eps},
                                 shape, stream);
      });
    }
    return;
  }
  require_tensor(args.q_gain, dtype, shape.head_dim, "q_gain");
  require_tensor(args.k_gain, dtype, shape.head_dim, "k_gain");
  require_tensor(args.qkv, dtype, shape.tokens * row_width, "qkv");
  const bool has_gains = args.d_q_gain.data != nullptr;
  TESSERA_REQUIRE(has_gains == (args.d_k_gain.data != nullptr), "gradients of both gains or none");
  if (has_gains) {
    require_tensor(args.d_q_gain, args.d_q_gain.dtype, shape.head_dim, "d_q_gain");
    require_tensor(args.d_k_gain, args.d_k_gain.dtype, shape.head_dim, "d_k_gain");
  }
  require_room(args.workspace, DType::f32, rotary_workspace(shape), "workspace");
  auto* partial = data_as<float>(args.workspace);
  Index blocks = 0;
  if (shape.tokens > 0) {
    with_element_type(dtype, "d_qkv", [&](auto zero) {
      using T = decltype(zero);
      blocks = launch_backward<T>({.d_qkv = data_as<T>(args.d_qkv),
                                   .cosine = data_as<float>(args.cos),
                                   .sine = data_as<float>(args.sin),
                                   .q_gain = data_as<T>(args.q_gain),
                                   .k_gain = data_as<T>(args.k_gain),
                                   .qkv = data_as<T>(args.qkv),
                                   .partial = partial,
                                   .positions = positions_of(args),
                                   .eps = args.eps},
                                  shape, stream);
    });
  }
  if (!has_gains) {
    return;
  }
  const Index stride = 2 * shape.head_dim;
  if (args.d_q_gain.dtype == args.d_k_gain.dtype) {
    add_partial_rows({.sums = partial, .rows = blocks, .stride = stride}, args.d_q_gain,
                     args.d_k_gain, stream);
    return;
  }
  add_partial_rows({.sums = partial, .rows = blocks, .stride = stride}, args.d_q_gain, stream);
  add_partial_rows({.sums = partial + shape.head_dim, .rows = blocks, .stride = stride},
                   args.d_k_gain, stream);
}

}  // namespace tessera::cuda
