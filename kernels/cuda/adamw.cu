#include "kernels/cuda/adamw_element.cuh"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;

//   master        [count]  f32, or u16 beside param, read and written
//   m, v          [count]  f32, read and written
//   grad          [count]  f32, read
//   param         [count]  written
template <typename Master, typename Param, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    update_all(Master* __restrict__ master, float* __restrict__ m, float* __restrict__ v,
               const float* __restrict__ grad, Param* __restrict__ param, Index count,
               AdamWFactors factors) {
  const Index at = (static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x) * kQuad;
  if (at >= count) {
    return;
  }
  const float4 gradient = load_quad<kAligned>(grad, at, count);
  float4 weight = load_masters<kAligned>(master, param, at, count);
  float4 first = load_quad<kAligned>(m, at, count);
  float4 second = load_quad<kAligned>(v, at, count);
  update_element(factors, factors.kept, gradient.x, weight.x, first.x, second.x);
  update_element(factors, factors.kept, gradient.y, weight.y, first.y, second.y);
  update_element(factors, factors.kept, gradient.z, weight.z, first.z, second.z);
  update_element(factors, factors.kept, gradient.w, weight.w, first.w, second.w);
  store_masters<kAligned>(master, param, at, count, weight);
  store_quad<kAligned>(m, at, count, first);
  store_quad<kAligned>(v, at, count, second);
}

}  // namespace

void adamw(const AdamWArgs& args, Stream& stream) {
  const Index count = args.master.count();
  require_moments(args, DeviceKind::cuda);
  require_tensor(args.grad, DType::f32, count, "grad");
  require_weights(args.master, args.param, args.param_values, count);
  if (count == 0) {
    return;
  }
  if (args.m.dtype != DType::f32) {
    adamw_rounded(args, stream);
    return;
  }
  const AdamWFactors factors(args);
  auto* m = data_as<float>(args.m);
  auto* v = data_as<float>(args.v);
  const auto* grad = data_as<float>(args.grad);
  const bool aligned = is_vector_aligned(args.master.data) && is_vector_aligned(m) &&
                       is_vector_aligned(v) && is_vector_aligned(grad) &&
                       is_vector_aligned(args.param.data);
  const unsigned blocks = block_count(count, kThreads * kQuad);
  with_weight_types(args.master, args.param, [&](auto* master, auto* param) {
    using Master = std::remove_pointer_t<decltype(master)>;
    using Param = std::remove_pointer_t<decltype(param)>;
    const auto launch = [&](auto kernel) {
      kernel<<<blocks, kThreads, 0, stream.cuda_handle()>>>(master, m, v, grad, param, count,
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
