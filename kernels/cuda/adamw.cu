#include <cmath>

#include "kernels/adamw.h"
#include "kernels/cuda/master_weights.cuh"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;

// What is the same for every element, computed on the host as kernels/cpu/adamw.cpp does.
struct Factors {
  float grad_scale;
  float beta1;
  float beta2;
  float new_share1;  // 1 - beta1
  float new_share2;  // 1 - beta2
  float kept;        // 1 - lr * decay
  float step;        // lr / c1
  float root_correction2;
  float eps;
};

// One element. Every operation is rounded by itself, as on the CPU: bit-identical on both.
__device__ __forceinline__ void update(const Factors& factors, float grad, float& master, float& m,
                                       float& v) {
  const float g = __fmul_rn(factors.grad_scale, grad);
  const float decayed = __fmul_rn(master, factors.kept);
  m = __fadd_rn(__fmul_rn(factors.beta1, m), __fmul_rn(factors.new_share1, g));
  v = __fadd_rn(__fmul_rn(factors.beta2, v), __fmul_rn(__fmul_rn(factors.new_share2, g), g));
  const float denominator =
      __fadd_rn(__fdiv_rn(__fsqrt_rn(v), factors.root_correction2), factors.eps);
  master = __fsub_rn(decayed, __fdiv_rn(__fmul_rn(factors.step, m), denominator));
}

//   master, m, v  [count]  f32, read and written
//   grad          [count]  f32, read
//   param         [count]  written
template <typename Param, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    update_all(float* __restrict__ master, float* __restrict__ m, float* __restrict__ v,
               const float* __restrict__ grad, Param* __restrict__ param, Index count,
               Factors factors) {
  const Index at = (static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x) * kQuad;
  if (at >= count) {
    return;
  }
  const float4 gradient = load_quad<kAligned>(grad, at, count);
  float4 weight = load_quad<kAligned>(master, at, count);
  float4 first = load_quad<kAligned>(m, at, count);
  float4 second = load_quad<kAligned>(v, at, count);
  update(factors, gradient.x, weight.x, first.x, second.x);
  update(factors, gradient.y, weight.y, first.y, second.y);
  update(factors, gradient.z, weight.z, first.z, second.z);
  update(factors, gradient.w, weight.w, first.w, second.w);
  store_quad<kAligned>(master, at, count, weight);
  store_quad<kAligned>(m, at, count, first);
  store_quad<kAligned>(v, at, count, second);
  store_params<kAligned>(param, at, count, weight);
}

}  // namespace

void adamw(const AdamWArgs& args, Stream& stream) {
  const Index count = args.master.count();
  require_tensor(args.master, DType::f32, count, "master");
  require_tensor(args.m, DType::f32, count, "m");
  require_tensor(args.v, DType::f32, count, "v");
  require_tensor(args.grad, DType::f32, count, "grad");
  require_tensor(args.param, args.param.dtype, count, "param");
  if (count == 0) {
    return;
  }
  const Factors factors = {.grad_scale = args.grad_scale,
                           .beta1 = args.beta1,
                           .beta2 = args.beta2,
                           .new_share1 = 1.0F - args.beta1,
                           .new_share2 = 1.0F - args.beta2,
                           .kept = 1.0F - args.lr * args.decay,
                           .step = args.lr / args.bias_correction1,
                           .root_correction2 = std::sqrt(args.bias_correction2),
                           .eps = args.eps};
  auto* master = data_as<float>(args.master);
  auto* m = data_as<float>(args.m);
  auto* v = data_as<float>(args.v);
  const auto* grad = data_as<float>(args.grad);
  const bool aligned = is_vector_aligned(master) && is_vector_aligned(m) && is_vector_aligned(v) &&
                       is_vector_aligned(grad) && is_vector_aligned(args.param.data);
  const unsigned blocks = block_count(count, kThreads * kQuad);
  with_element_type(args.param.dtype, "param", [&](auto zero) {
    using Param = decltype(zero);
    const auto launch = [&](auto kernel) {
      kernel<<<blocks, kThreads, 0, stream.cuda_handle()>>>(
          master, m, v, grad, data_as<Param>(args.param), count, factors);
    };
    if (aligned) {
      launch(update_all<Param, true>);
    } else {
      launch(update_all<Param, false>);
    }
  });
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

}  // namespace tessera::cuda
