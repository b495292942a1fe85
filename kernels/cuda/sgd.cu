#include "kernels/cuda/master_weights.cuh"
#include "kernels/sgd.h"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;

// What is the same for every element.
struct Factors {
  float grad_scale;
  float momentum;
  float decay;
  float lr;
};

// One element. Every operation is rounded by itself, as on the CPU: bit-identical on both.
__device__ __forceinline__ void update(const Factors& factors, float grad, float& master,
                                       float& buffer) {
  const float g = __fadd_rn(__fmul_rn(factors.grad_scale, grad), __fmul_rn(factors.decay, master));
  buffer = __fadd_rn(__fmul_rn(factors.momentum, buffer), g);
  master = __fsub_rn(master, __fmul_rn(factors.lr, buffer));
}

//   master          [count]  f32, or u16 beside param, read and written
//   buffer          [count]  f32, read and written
//   grad            [count]  f32, read
//   param           [count]  written
template <typename Master, typename Param, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    update_all(Master* __restrict__ master, float* __restrict__ buffer,
               const float* __restrict__ grad, Param* __restrict__ param, Index count,
               Factors factors) {
  const Index at = (static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x) * kQuad;
  if (at >= count) {
    return;
  }
  const float4 gradient = load_quad<kAligned>(grad, at, count);
  float4 weight = load_masters<kAligned>(master, param, at, count);
  float4 moving = load_quad<kAligned>(buffer, at, count);
  update(factors, gradient.x, weight.x, moving.x);
  update(factors, gradient.y, weight.y, moving.y);
  update(factors, gradient.z, weight.z, moving.z);
  update(factors, gradient.w, weight.w, moving.w);
  store_masters<kAligned>(master, param, at, count, weight);
  store_quad<kAligned>(buffer, at, count, moving);
}

}  // namespace

void sgd(const SgdArgs& args, Stream& stream) {
  const Index count = args.master.count();
  require_tensor(args.buffer, DType::f32, count, "buffer");
  require_tensor(args.grad, DType::f32, count, "grad");
  require_weights(args.master, args.param, args.param_values, count);
  if (count == 0) {
    return;
  }
  const Factors factors = {
      .grad_scale = args.grad_scale, .momentum = args.momentum, .decay = args.decay, .lr = args.lr};
  auto* buffer = data_as<float>(args.buffer);
  const auto* grad = data_as<float>(args.grad);
  const bool aligned = is_vector_aligned(args.master.data) && is_vector_aligned(buffer) &&
                       is_vector_aligned(grad) && is_vector_aligned(args.param.data);
  const unsigned blocks = block_count(count, kThreads * kQuad);
  with_weight_types(args.master, args.param, [&](auto* master, auto* param) {
    using Master = std::remove_pointer_t<decltype(master)>;
    using Param = std::remove_pointer_t<decltype(param)>;
    const auto launch = [&](auto kernel) {
      kernel<<<blocks, kThreads, 0, stream.cuda_handle()>>>(master, buffer, grad, param, count,
                                                            factors);
    };
    if (aligned) {
      launch(update_all<Master, Param, true>);
    } else {
      launch(update_all<Master, Param, false>);
    }
  });
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

}  // namespace tessera::cuda
