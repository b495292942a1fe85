// SwiGLU (Shazeer 2020, arXiv:2002.05202): act = silu(gate) * up, silu(x) = x / (1 + exp(-x)).
#pragma once

#include "kernels/device/tensor_view.h"

namespace tessera {

struct SwigluForwardArgs {
  ConstTensorView gate_up;  // [N, 2 F] f32 or bf16: gate in columns [0, F), up in [F, 2 F)
  TensorView act;           // [N, F] written
  TensorView abs_max = {};  // [1] f32, written: max |act| (kernels/quantize.h); data null for none
};

/// Writes act again, bit-identical to forward's, so that it need not be kept.
struct SwigluBackwardArgs {
  ConstTensorView gate_up;  // [N, 2 F]
  ConstTensorView d_act;    // [N, F]
  TensorView d_gate_up;     // [N, 2 F] written; may be the memory of gate_up
  TensorView act;           // [N, F] written; may be the memory of d_act
  TensorView abs_max = {};  // [1] f32, written: max |d_gate_up|; data null for none
};

/// One signature; a definition in kernels/cpu and one in kernels/cuda.
using SwigluForwardFn = void(const SwigluForwardArgs& args, Stream& stream);
using SwigluBackwardFn = void(const SwigluBackwardArgs& args, Stream& stream);

namespace cpu {
SwigluForwardFn swiglu_forward;
SwigluBackwardFn swiglu_backward;
}  // namespace cpu
namespace cuda {
SwigluForwardFn swiglu_forward;
SwigluBackwardFn swiglu_backward;
}  // namespace cuda

}  // namespace tessera
