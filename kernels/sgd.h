// One step of stochastic gradient descent with momentum over a run of elements, as torch.optim.SGD
// does it (dampening 0, no Nesterov): Goyal et al. 2017, arXiv:1706.02677, equation 9, with the
// weight decay as a part of the gradient (their section 3; not decoupled as AdamW's).
//
//   g      = grad_scale * grad + decay * master
//   buffer = momentum * buffer + g
//   master = master - lr * buffer
//   param  = master as param_values                   round half away from zero
//
// Where master is u16, the master weight is what param and its remainder hold together
// (kernels/device/master_code.h).
//
// Both backends use this order and no fused multiply-add across it.
#pragma once

#include "kernels/device/tensor_view.h"

namespace tessera {

struct SgdArgs {
  TensorView master;     // [S] f32, or u16: the remainders beside param; read and written
  TensorView buffer;     // [S] f32, read and written; zeros before the first step
  ConstTensorView grad;  // [S] f32, summed over ranks and micro-steps
  TensorView param;      // [S] bf16 or f32, written; with remainders also read
  float lr;
  float momentum;
  float decay;
  float grad_scale;  // clip factor; 1 when the norm is within bounds
  /// f32, or bf16: what a param of f32 is rounded to. A param of bf16 always is.
  DType param_values = DType::f32;
};

using SgdFn = void(const SgdArgs& args, Stream& stream);

namespace cpu {
SgdFn sgd;
}
namespace cuda {
SgdFn sgd;
}

}  // namespace tessera
