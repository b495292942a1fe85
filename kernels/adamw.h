// One AdamW step over a run of elements (Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2).
//
//   m      = beta1 * m + (1 - beta1) * g              g = grad_scale * grad
//   v      = beta2 * v + (1 - beta2) * g * g
//   master = master - lr * (m / c1 / (sqrt(v / c2) + eps) + decay * master)
//   param  = master in the dtype of param             round half away from zero
//
// The decay is applied first, to the old weight, as PyTorch does:
//
//   master = master * (1 - lr * decay), then master = master - lr * (m / c1 / (sqrt(v / c2) + eps))
//
// Both backends use this order and no fused multiply-add across it.
#pragma once

#include "kernels/device/tensor_view.h"

namespace tessera {

struct AdamWArgs {
  TensorView master;     // [S] f32, read and written
  TensorView m;          // [S] f32, read and written
  TensorView v;          // [S] f32, read and written
  ConstTensorView grad;  // [S] f32, summed over ranks and micro-steps
  TensorView param;      // [S] bf16 or f32, written
  float lr;
  float beta1;
  float beta2;
  float bias_correction1;  // c1 = 1 - beta1^t, computed in double by the caller
  float bias_correction2;  // c2 = 1 - beta2^t
  float eps;
  float decay;
  float grad_scale;  // clip factor; 1 when the norm is within bounds
};

using AdamWFn = void(const AdamWArgs& args, Stream& stream);

namespace cpu {
AdamWFn adamw;
}
namespace cuda {
AdamWFn adamw;
}

}  // namespace tessera
