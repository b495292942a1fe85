// One element of an AdamW step on the device, for each type of moments.
#pragma once

#include "kernels/adamw.h"
#include "kernels/cuda/master_weights.cuh"

namespace tessera::cuda {

/// Every operation is rounded by itself, as on the CPU: bit-identical on both.
__device__ __forceinline__ void update_element(const AdamWFactors& factors, float kept, float grad,
                                               float& master, float& m, float& v) {
  const float g = __fmul_rn(factors.grad_scale, grad);
  const float decayed = __fmul_rn(master, kept);
  m = __fadd_rn(__fmul_rn(factors.beta1, m), __fmul_rn(factors.new_share1, g));
  v = __fadd_rn(__fmul_rn(factors.beta2, v), __fmul_rn(__fmul_rn(factors.new_share2, g), g));
  const float denominator =
      __fadd_rn(__fdiv_rn(__fsqrt_rn(v), factors.root_correction2), factors.eps);
  master = __fsub_rn(decayed, __fdiv_rn(__fmul_rn(factors.step, m), denominator));
}

/// The step with moments in bf16 or in 8 bits (adamw_rounded.cu).
void adamw_rounded(const AdamWArgs& args, Stream& stream);

}  // namespace tessera::cuda
