#include "kernels/sgd.h"

#include "kernels/cpu/partition.h"
#include "kernels/cpu/require.h"
#include "kernels/device/cpu/submit.h"

namespace tessera::cpu {
namespace {

void update(const SgdArgs& args) {
  const Index count = args.master.count();
  auto* master = data_as<float>(args.master);
  auto* buffer = data_as<float>(args.buffer);
  const auto* grad = data_as<float>(args.grad);
  auto* param = data_as<float>(args.param);
  const float grad_scale = args.grad_scale;
  const float momentum = args.momentum;
  const float decay = args.decay;
  const float lr = args.lr;
#pragma omp parallel for simd schedule(static) if (parallel : count > kParallelElements)
  for (Index i = 0; i < count; ++i) {
    const float g = grad_scale * grad[i] + decay * master[i];
    const float moving = momentum * buffer[i] + g;
    const float updated = master[i] - lr * moving;
    buffer[i] = moving;
    master[i] = updated;
    param[i] = updated;
  }
}

}  // namespace

void sgd(const SgdArgs& args, Stream& stream) {
  const Index count = args.master.count();
  require_tensor(args.master, DType::f32, count, "master");
  require_tensor(args.buffer, DType::f32, count, "buffer");
  require_tensor(args.grad, DType::f32, count, "grad");
  require_tensor(args.param, DType::f32, count, "param");
  submit(stream, [args] { update(args); });
}

}  // namespace tessera::cpu
