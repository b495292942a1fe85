#include "kernels/sgd.h"

#include "kernels/cpu/master_weights.h"
#include "kernels/cpu/partition.h"
#include "kernels/device/cpu/submit.h"

namespace tessera::cpu {
namespace {

template <typename Weights>
void update(const SgdArgs& args, const Weights& weights) {
  const Index count = args.master.count();
  auto* buffer = data_as<float>(args.buffer);
  const auto* grad = data_as<float>(args.grad);
  const float grad_scale = args.grad_scale;
  const float momentum = args.momentum;
  const float decay = args.decay;
  const float lr = args.lr;
#pragma omp parallel for simd schedule(static) if (parallel : count > kParallelElements)
  for (Index i = 0; i < count; ++i) {
    const float weight = weights.load(i);
    const float g = grad_scale * grad[i] + decay * weight;
    const float moving = momentum * buffer[i] + g;
    const float updated = weight - lr * moving;
    buffer[i] = moving;
    weights.store(i, updated);
  }
}

}  // namespace

void sgd(const SgdArgs& args, Stream& stream) {
  const Index count = args.master.count();
  require_weights(args.master, args.param, args.param_values, count);
  require_tensor(args.buffer, DType::f32, count, "buffer");
  require_tensor(args.grad, DType::f32, count, "grad");
  submit(stream, [args] {
    with_weights(args.master, args.param, args.param_values,
                 [&args](const auto& weights) { update(args, weights); });
  });
}

}  // namespace tessera::cpu
