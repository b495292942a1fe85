#include "kernels/adamw.h"

#include <cmath>

#include "kernels/cpu/partition.h"
#include "kernels/cpu/require.h"
#include "kernels/device/cpu/submit.h"

namespace tessera::cpu {
namespace {

// The order of operations is PyTorch's: decay, then m and v, then
// master -= (lr / c1) * m / (sqrt(v) / sqrt(c2) + eps).
void update(const AdamWArgs& args) {
  const Index count = args.master.count();
  auto* master = data_as<float>(args.master);
  auto* m = data_as<float>(args.m);
  auto* v = data_as<float>(args.v);
  const auto* grad = data_as<float>(args.grad);
  auto* param = data_as<float>(args.param);
  const float grad_scale = args.grad_scale;
  const float beta1 = args.beta1;
  const float beta2 = args.beta2;
  const float new_share1 = 1.0F - args.beta1;
  const float new_share2 = 1.0F - args.beta2;
  const float kept = 1.0F - args.lr * args.decay;
  const float step = args.lr / args.bias_correction1;
  const float root_correction2 = std::sqrt(args.bias_correction2);
  const float eps = args.eps;
#pragma omp parallel for simd schedule(static) if (parallel : count > kParallelElements)
  for (Index i = 0; i < count; ++i) {
    const float g = grad_scale * grad[i];
    const float decayed = master[i] * kept;
    const float new_m = beta1 * m[i] + new_share1 * g;
    const float new_v = beta2 * v[i] + new_share2 * g * g;
    const float denominator = std::sqrt(new_v) / root_correction2 + eps;
    const float updated = decayed - step * new_m / denominator;
    m[i] = new_m;
    v[i] = new_v;
    master[i] = updated;
    param[i] = updated;
  }
}

}  // namespace

void adamw(const AdamWArgs& args, Stream& stream) {
  const Index count = args.master.count();
  require_tensor(args.master, DType::f32, count, "master");
  require_tensor(args.m, DType::f32, count, "m");
  require_tensor(args.v, DType::f32, count, "v");
  require_tensor(args.grad, DType::f32, count, "grad");
  require_tensor(args.param, DType::f32, count, "param");
  submit(stream, [args] { update(args); });
}

}  // namespace tessera::cpu
