#include "kernels/cuda/master_weights.cuh"
#include "kernels/muon.h"
#include "kernels/workspaces.h"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;

// ---- momentum ---------------------------------------------------------------------------------

struct MomentumFactors {
  float kept;
  float new_share;
  float grad_scale;
};

// One element. Every operation is rounded by itself, as on the CPU: bit-identical on both.
__device__ __forceinline__ void update_momentum(const MomentumFactors& factors, float& grad,
                                                float& m) {
  const float share = __fmul_rn(factors.new_share, __fmul_rn(factors.grad_scale, grad));
  m = __fadd_rn(__fmul_rn(factors.kept, m), share);
  grad = __fadd_rn(__fmul_rn(factors.kept, m), share);
}

//   m          [count]  f32, read and written
//   grad       [count]  f32, read
//   direction  [count]  written
template <typename Direction, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    momentum_all(float* __restrict__ m, const float* __restrict__ grad,
                 Direction* __restrict__ direction, Index count, MomentumFactors factors) {
  const Index at = (static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x) * kQuad;
  if (at >= count) {
    return;
  }
  float4 gradient = load_quad<kAligned>(grad, at, count);
  float4 moving = load_quad<kAligned>(m, at, count);
  update_momentum(factors, gradient.x, moving.x);
  update_momentum(factors, gradient.y, moving.y);
  update_momentum(factors, gradient.z, moving.z);
  update_momentum(factors, gradient.w, moving.w);
  store_quad<kAligned>(m, at, count, moving);
  store_quad<kAligned>(direction, at, count, gradient);
}

// ---- normalisation ----------------------------------------------------------------------------

constexpr int kWarps = kThreads / kWarp;
constexpr int kSumsOfThread = static_cast<int>(kMuonPartialSums) / kThreads;
static_assert(kSumsOfThread * kThreads == kMuonPartialSums);
// Blocks of the division: four for each multiprocessor of an H100. Free: an element is divided by
// itself.
constexpr Index kDividingBlocks = 528;

// The sum over the block, the same in every thread: lanes by a butterfly, then warps by one.
__device__ __forceinline__ double sum_of_block(double value, double (&shared)[kWarps]) {
  const double sum = warp_sum(value);
  if (threadIdx.x % kWarp == 0) {
    shared[threadIdx.x / kWarp] = sum;
  }
  __syncthreads();
  const unsigned lane = threadIdx.x % kWarp;
  return warp_sum(lane < kWarps ? shared[lane] : 0.0);
}

// Block b adds the squares of piece b of kMuonPartialSums equal ones; its thread t quads t,
// t + 256, ... of the piece in this order.
//
//   matrix  [count]             read
//   sums    [kMuonPartialSums]  written
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    sum_squares(const T* __restrict__ matrix, Index count, Index piece_quads,
                double* __restrict__ sums) {
  __shared__ double shared[kWarps];
  const Index first = static_cast<Index>(blockIdx.x) * piece_quads;
  double sum = 0;
  for (Index quad = threadIdx.x; quad < piece_quads; quad += kThreads) {
    const float4 values = load_quad<kAligned>(matrix, (first + quad) * kQuad, count);
    const double a = values.x;
    const double b = values.y;
    const double c = values.z;
    const double d = values.w;
    // products of two f32 are exact in f64
    sum = fma(a, a, sum);
    sum = fma(b, b, sum);
    sum = fma(c, c, sum);
    sum = fma(d, d, sum);
  }
  sum = sum_of_block(sum, shared);
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = sum;
  }
}

// Every block adds all partial sums, in one order.
//
//   sums    [kMuonPartialSums]  read
//   matrix  [count]             read
//   normal  [count]             written; may be matrix
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    divide_by_norm(const double* __restrict__ sums, const T* matrix, T* normal, Index count) {
  __shared__ double shared[kWarps];
  double sum = 0;
#pragma unroll
  for (int i = 0; i < kSumsOfThread; ++i) {
    sum += sums[threadIdx.x + i * kThreads];
  }
  const double norm = sqrt(sum_of_block(sum, shared));
  const double factor = norm == 0 ? 0 : 1 / norm;
  const auto divided = [factor](float value) {
    return static_cast<float>(static_cast<double>(value) * factor);
  };
  const Index quads = (count + kQuad - 1) / kQuad;
  const Index stride = static_cast<Index>(gridDim.x) * kThreads;
  for (Index quad = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x; quad < quads;
       quad += stride) {
    const float4 values = load_quad<kAligned>(matrix, quad * kQuad, count);
    store_quad<kAligned>(
        normal, quad * kQuad, count,
        make_float4(divided(values.x), divided(values.y), divided(values.z), divided(values.w)));
  }
}

// ---- update -----------------------------------------------------------------------------------

//   master     [count]  f32, or u16 beside param, read and written
//   direction  [count]  read
//   param      [count]  written
template <typename Master, typename Param, typename Direction, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    update_all(Master* __restrict__ master, const Direction* __restrict__ direction,
               Param* __restrict__ param, Index count, float kept, float step) {
  const Index at = (static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x) * kQuad;
  if (at >= count) {
    return;
  }
  const float4 along = load_quad<kAligned>(direction, at, count);
  float4 weight = load_masters<kAligned>(master, param, at, count);
  const auto updated = [kept, step](float of, float by) {
    return __fsub_rn(__fmul_rn(of, kept), __fmul_rn(step, by));
  };
  weight.x = updated(weight.x, along.x);
  weight.y = updated(weight.y, along.y);
  weight.z = updated(weight.z, along.z);
  weight.w = updated(weight.w, along.w);
  store_masters<kAligned>(master, param, at, count, weight);
}

}  // namespace

void muon_momentum(const MuonMomentumArgs& args, Stream& stream) {
  const Index count = args.m.count();
  require_tensor(args.m, DType::f32, count, "m");
  require_tensor(args.grad, DType::f32, count, "grad");
  require_tensor(args.direction, args.direction.dtype, count, "direction");
  if (count == 0) {
    return;
  }
  const MomentumFactors factors = {
      .kept = args.momentum, .new_share = 1.0F - args.momentum, .grad_scale = args.grad_scale};
  auto* m = data_as<float>(args.m);
  const auto* grad = data_as<float>(args.grad);
  const bool aligned =
      is_vector_aligned(m) && is_vector_aligned(grad) && is_vector_aligned(args.direction.data);
  const unsigned blocks = block_count(count, kThreads * kQuad);
  with_element_type(args.direction.dtype, "direction", [&](auto zero) {
    using Direction = decltype(zero);
    const auto launch = [&](auto kernel) {
      kernel<<<blocks, kThreads, 0, stream.cuda_handle()>>>(
          m, grad, data_as<Direction>(args.direction), count, factors);
    };
    if (aligned) {
      launch(momentum_all<Direction, true>);
    } else {
      launch(momentum_all<Direction, false>);
    }
  });
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

void muon_normalize(const MuonNormalizeArgs& args, Stream& stream) {
  const Index count = args.matrix.count();
  require_tensor(args.matrix, args.matrix.dtype, count, "matrix");
  require_tensor(args.normal, args.matrix.dtype, count, "normal");
  require_room(args.workspace, DType::u8, static_cast<Index>(muon_normalize_workspace_bytes()),
               "workspace");
  if (count == 0) {
    return;
  }
  const Index quads = divide_up(count, kQuad);
  const Index piece_quads = divide_up(quads, kMuonPartialSums);
  const unsigned blocks = block_count(std::min(divide_up(quads, kThreads), kDividingBlocks), 1);
  auto* sums = static_cast<double*>(args.workspace.data);
  with_element_type(args.matrix.dtype, "matrix", [&](auto zero) {
    using T = decltype(zero);
    const T* matrix = data_as<T>(args.matrix);
    T* normal = data_as<T>(args.normal);
    const auto launch = [&](auto add, auto divide) {
      add<<<static_cast<unsigned>(kMuonPartialSums), kThreads, 0, stream.cuda_handle()>>>(
          matrix, count, piece_quads, sums);
      TESSERA_CHECK_CUDA(cudaGetLastError());
      divide<<<blocks, kThreads, 0, stream.cuda_handle()>>>(sums, matrix, normal, count);
    };
    if (is_vector_aligned(matrix) && is_vector_aligned(normal)) {
      launch(sum_squares<T, true>, divide_by_norm<T, true>);
    } else {
      launch(sum_squares<T, false>, divide_by_norm<T, false>);
    }
  });
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

void muon_update(const MuonUpdateArgs& args, Stream& stream) {
  const Index count = args.direction.count();
  require_tensor(args.direction, args.direction.dtype, count, "direction");
  require_weights(args.master, args.param, args.param_values, count);
  if (count == 0) {
    return;
  }
  const bool aligned = is_vector_aligned(args.master.data) && is_vector_aligned(args.param.data) &&
                       is_vector_aligned(args.direction.data);
  const unsigned blocks = block_count(count, kThreads * kQuad);
  const float kept = 1.0F - args.lr * args.decay;
  const float step = args.lr * args.scale;
  with_element_type(args.direction.dtype, "direction", [&](auto zero) {
    using Direction = decltype(zero);
    with_weight_types(args.master, args.param, [&](auto* master, auto* param) {
      using Master = std::remove_pointer_t<decltype(master)>;
      using Param = std::remove_pointer_t<decltype(param)>;
      const auto launch = [&](auto kernel) {
        kernel<<<blocks, kThreads, 0, stream.cuda_handle()>>>(
            master, data_as<Direction>(args.direction), param, count, kept, step);
      };
      if (aligned) {
        launch(update_all<Master, Param, Direction, true>);
      } else {
        launch(update_all<Master, Param, Direction, false>);
      }
    });
  });
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

}  // namespace tessera::cuda
