// One element of an AdamW step on the CPU, for each type of moments.
#pragma once

#include <cmath>

#include "kernels/adamw.h"

namespace tessera::cpu {

/// What is the same for every element.
struct AdamWFactors {
  explicit AdamWFactors(const AdamWArgs& args)
      : grad_scale(args.grad_scale),
        beta1(args.beta1),
        beta2(args.beta2),
        new_share1(1.0F - args.beta1),
        new_share2(1.0F - args.beta2),
        kept(1.0F - args.lr * args.decay),
        step(args.lr / args.bias_correction1),
        root_correction2(std::sqrt(args.bias_correction2)),
        eps(args.eps) {}
  float grad_scale;
  float beta1;
  float beta2;
  float new_share1;
  float new_share2;
  float kept;  // of the weight, by the decay
  float step;
  float root_correction2;
  float eps;
};

/// Changes m and v, and returns the new weight. The order of operations is PyTorch's: decay, then m
/// and v, then weight -= (lr / c1) * m / (sqrt(v) / sqrt(c2) + eps).
inline float updated_weight(const AdamWFactors& f, float weight, float kept, float grad, float& m,
                            float& v) {
  const float g = f.grad_scale * grad;
  const float decayed = weight * kept;
  m = f.beta1 * m + f.new_share1 * g;
  v = f.beta2 * v + f.new_share2 * g * g;
  const float denominator = std::sqrt(v) / f.root_correction2 + f.eps;
  return decayed - f.step * m / denominator;
}

/// The step with moments in bf16 or in 8 bits.
void adamw_rounded(const AdamWArgs& args);

}  // namespace tessera::cpu
