// QK-norm and rotary position embedding in one pass over the fused q, k, v rows.
//
// QK-norm (Qwen3): RMSNorm over the D elements of each query and key head, one gain for all heads.
// Rotary embedding (Su et al. 2021, arXiv:2104.09864), half-split pairs (i, i + D/2), as Hugging
// Face:
//
//   out[i]       = x[i] * cos[t, i] - x[i + D/2] * sin[t, i]
//   out[i + D/2] = x[i + D/2] * cos[t, i] + x[i] * sin[t, i]          t = n % T, or positions[n]
#pragma once

#include "kernels/device/tensor_view.h"

namespace tessera {

struct RotaryShape {
  Index tokens;       // N
  Index sequence;     // T
  Index query_heads;  // Hq
  Index kv_heads;     // Hkv
  Index head_dim;     // D, even
};

struct RotaryForwardArgs {
  RotaryShape shape;
  TensorView qkv;          // [N, (Hq + 2 Hkv) * D] f32 or bf16; v untouched
  ConstTensorView cos;     // [T, D/2] f32
  ConstTensorView sin;     // [T, D/2] f32
  ConstTensorView q_gain;  // [D] dtype of qkv; data null: no QK-norm
  ConstTensorView k_gain;  // [D]
  TensorView rotated_qk;   // [N, (Hq + Hkv) * D] dtype of qkv, written; qkv stays as it came, which
                           // QK-norm's backward pass reads. Data null: q and k in place in qkv
  float eps;
  ConstTensorView positions = {};  // [N] i32, each in [0, T); data null: n % T
};

struct RotaryBackwardArgs {
  RotaryShape shape;
  TensorView d_qkv;  // [N, (Hq + 2 Hkv) * D]; q and k in place, v untouched
  ConstTensorView cos;
  ConstTensorView sin;
  ConstTensorView q_gain;  // data null: no QK-norm, and nothing below is used
  ConstTensorView k_gain;
  ConstTensorView qkv;   // [N, (Hq + 2 Hkv) * D] as it came into forward; v is not read
  TensorView d_q_gain;   // [D] f32 or bf16, written; data of both null: not needed
  TensorView d_k_gain;   // [D]
  TensorView workspace;  // f32, rotary_workspace(shape) elements
  float eps;
  ConstTensorView positions = {};  // as in forward
};
/// Elements (f32): partial gain gradients, a fixed number of rows of 2 D.
[[nodiscard]] Index rotary_workspace(const RotaryShape& shape);

/// One signature; a definition in kernels/cpu and one in kernels/cuda.
using RotaryForwardFn = void(const RotaryForwardArgs& args, Stream& stream);
using RotaryBackwardFn = void(const RotaryBackwardArgs& args, Stream& stream);

namespace cpu {
RotaryForwardFn rotary_forward;
RotaryBackwardFn rotary_backward;
}  // namespace cpu
namespace cuda {
RotaryForwardFn rotary_forward;
RotaryBackwardFn rotary_backward;
}  // namespace cuda

}  // namespace tessera
