#include "kernels/adamw.h"

#include "kernels/cpu/adamw_element.h"
#include "kernels/cpu/master_weights.h"
#include "kernels/cpu/partition.h"
#include "kernels/device/cpu/submit.h"

namespace tessera::cpu {
namespace {

template <typename Weights>
void update(const AdamWArgs& args, const Weights& weights) {
  const Index count = args.grad.count();
  auto* m = data_as<float>(args.m);
  auto* v = data_as<float>(args.v);
  const auto* grad = data_as<float>(args.grad);
  const AdamWFactors factors(args);
#pragma omp parallel for simd schedule(static) if (parallel : count > kParallelElements)
  for (Index i = 0; i < count; ++i) {
    float first = m[i];
    float second = v[i];
    const float updated =
        updated_weight(factors, weights.load(i), factors.kept, grad[i], first, second);
    m[i] = first;
    v[i] = second;
    weights.store(i, updated);
  }
}

}  // namespace

void adamw(const AdamWArgs& args, Stream& stream) {
  const Index count = args.master.count();
  require_weights(args.master, args.param, args.param_values, count);
  require_moments(args, DeviceKind::cpu);
  require_tensor(args.grad, DType::f32, count, "grad");
  submit(stream, [args] {
    if (args.m.dtype != DType::f32) {
      adamw_rounded(args);
      return;
    }
    with_weights(args.master, args.param, args.param_values,
                 [&args](const auto& weights) { update(args, weights); });
  });
}

}  // namespace tessera::cpu
