// The element-wise parts of Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon; Liu et al.
// 2025, arXiv:2502.16982) over runs of elements of a matrix; newton_schulz.h has the part between
// them, which needs whole matrices.
//
//   m         = momentum * m + (1 - momentum) * g        g = grad_scale * grad
//   direction = momentum * m + (1 - momentum) * g        Nesterov's
//   normal    = direction / |direction|                  by the Frobenius norm of the matrix
//   ...
//   master    = master * (1 - lr * decay) - lr * scale * direction
//   param     = master as param_values                   round half away from zero
//
// (1 - momentum) scales m and direction alike, which the norm takes out again: m is then an average
// of gradients, as AdamW's first moment.
//
// Where master is u16, the master weight is what param and its remainder hold together
// (kernels/device/master_code.h). Both backends use this order and no fused multiply-add across it.
#pragma once

#include "kernels/device/tensor_view.h"

namespace tessera {

struct MuonMomentumArgs {
  TensorView m;          // [S] f32, read and written; zeros before the first step
  ConstTensorView grad;  // [S] f32, summed over ranks and micro-steps
  TensorView direction;  // [S] f32, or on CUDA bf16, written: rounded to nearest even
  float momentum;
  float grad_scale;  // clip factor; 1 when the norm is within bounds
};

/// A matrix divided by its Frobenius norm, whose squares are added in f64 in an order that depends
/// on S alone. One without an element that is not zero stays so.
struct MuonNormalizeArgs {
  ConstTensorView matrix;  // [S] f32, or on CUDA bf16
  TensorView normal;       // [S] of the same type, written; may be exactly `matrix`
  TensorView workspace;    // u8, muon_normalize_workspace_bytes()
};
[[nodiscard]] std::size_t muon_normalize_workspace_bytes() noexcept;

struct MuonUpdateArgs {
  TensorView master;          // [S] f32, or u16: the remainders beside param; read and written
  ConstTensorView direction;  // [S] f32, or on CUDA bf16: of the orthogonalised matrix
  TensorView param;           // [S] bf16 or f32, written; with remainders also read
  float lr;
  float scale;  // of the matrix
  float decay;
  /// f32, or bf16: what a param of f32 is rounded to. A param of bf16 always is.
  DType param_values = DType::f32;
};

using MuonMomentumFn = void(const MuonMomentumArgs& args, Stream& stream);
using MuonNormalizeFn = void(const MuonNormalizeArgs& args, Stream& stream);
using MuonUpdateFn = void(const MuonUpdateArgs& args, Stream& stream);

namespace cpu {
MuonMomentumFn muon_momentum;
MuonNormalizeFn muon_normalize;
MuonUpdateFn muon_update;
}  // namespace cpu
namespace cuda {
MuonMomentumFn muon_momentum;
MuonNormalizeFn muon_normalize;
MuonUpdateFn muon_update;
}  // namespace cuda

}  // namespace tessera
