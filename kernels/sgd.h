// One step of stochastic gradient descent with momentum over a run of elements, as torch.optim.SGD
// does it (dampening 0, no Nesterov): Goyal et al. 2017, arXiv:1706.02677, equation 9, with the
// weight decay as a part of the gradient (their section 3; not decoupled as AdamW's).
//
//   g      = grad_scale * grad + decay * master
//   buffer = momentum * buffer + g
//   master = master - lr * buffer
//   param  = master in the dtype of param             round half away from zero
//
// Both backends use this order and no fused multiply-add across it.
#pragma once

#include "kernels/device/tensor_view.h"

namespace tessera {

struct SgdArgs {
  TensorView master;     // [S] f32, read and written
  TensorView buffer;     // [S] f32, read and written; zeros before the first step
  ConstTensorView grad;  // [S] f32, summed over ranks and micro-steps
  TensorView param;      // [S] bf16 or f32, written
  float lr;
  float momentum;
  float decay;
  float grad_scale;  // clip factor; 1 when the norm is within bounds
};

using SgdFn = void(const SgdArgs& args, Stream& stream);

namespace cpu {
SgdFn sgd;
}
namespace cuda {
SgdFn sgd;
}

}  // namespace tessera
