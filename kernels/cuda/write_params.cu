#include "kernels/cuda/master_weights.cuh"
#include "kernels/write_params.h"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;

//   master  [count]  f32, read
//   param   [count]  written
template <typename Param, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    write(const float* __restrict__ master, Param* __restrict__ param, Index count) {
  const Index at = (static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x) * kQuad;
  if (at < count) {
    store_params<kAligned>(param, at, count, load_quad<kAligned>(master, at, count));
  }
}

}  // namespace

void write_params(const WriteParamsArgs& args, Stream& stream) {
  const Index count = args.master.count();
  require_tensor(args.master, DType::f32, count, "master");
  require_params(args.param, args.param_values, count);
  if (count == 0) {
    return;
  }
  const auto* master = data_as<float>(args.master);
  const bool aligned = is_vector_aligned(master) && is_vector_aligned(args.param.data);
  const unsigned blocks = block_count(count, kThreads * kQuad);
  with_element_type(args.param.dtype, "param", [&](auto zero) {
    using Param = decltype(zero);
    const auto launch = [&](auto kernel) {
      kernel<<<blocks, kThreads, 0, stream.cuda_handle()>>>(master, data_as<Param>(args.param),
                                                            count);
    };
    if (aligned) {
      launch(write<Param, true>);
    } else {
      launch(write<Param, false>);
    }
  });
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

}  // namespace tessera::cuda
