// RMSNorm (Zhang & Sennrich 2019, arXiv:1910.07467), statistics in f32.
//
//   r[n] = 1 / sqrt(mean_c(x[n, c]^2) + eps)      y = x * r * gain
//   dx   = r * (gain * dy - x * r * mean_c(gain * dy * x * r))      dgain = sum_n dy * x * r
#pragma once

#include "kernels/device/tensor_view.h"

namespace tessera {

struct RmsNormForwardArgs {
  ConstTensorView x;     // [N, C] f32 or bf16
  ConstTensorView gain;  // [C] same dtype
  TensorView y;          // [N, C] written
  float eps;
  TensorView abs_max = {};  // [1] f32, written: max |y| (kernels/quantize.h); data null for none
};

/// Recomputes r from x. Writes y again where the caller needs it for a weight gradient, so that no
/// normalised activations are kept between forward and backward: bit-identical to forward's.
struct RmsNormBackwardArgs {
  ConstTensorView x;         // [N, C]
  ConstTensorView gain;      // [C]
  ConstTensorView d_y;       // [N, C]
  ConstTensorView residual;  // [N, C] gradient that goes past the norm, added to dx; or {}
  TensorView d_x;            // [N, C] written: residual + dx; may be the memory of residual or d_y
  TensorView y;              // [N, C] written; data null: not needed; may be the memory of d_y
  TensorView d_gain;         // [C] f32 or bf16, written; rows summed in f32 in a fixed order; data
                             // null: not needed
  TensorView workspace;      // f32, column_sum_workspace(N, C)
  float eps;
  TensorView abs_max = {};  // [1] f32, written: max |d_x|; data null for none
};

/// One signature; a definition in kernels/cpu and one in kernels/cuda.
using RmsNormForwardFn = void(const RmsNormForwardArgs& args, Stream& stream);
using RmsNormBackwardFn = void(const RmsNormBackwardArgs& args, Stream& stream);

namespace cpu {
RmsNormForwardFn rms_norm_forward;
RmsNormBackwardFn rms_norm_backward;
}  // namespace cpu
namespace cuda {
RmsNormForwardFn rms_norm_forward;
RmsNormBackwardFn rms_norm_backward;
}  // namespace cuda

}  // namespace tessera
