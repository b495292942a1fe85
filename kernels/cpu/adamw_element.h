// One element of an AdamW step on the CPU, for each type of moments.
#pragma once

#include <cmath>

#include "kernels/adamw.h"

namespace tessera::cpu {

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
