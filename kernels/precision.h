// Which type of number stands where in a run. One struct, so that a number format is a row of
// `precision_of` and what reads these fields, not a search through the code.
#pragma once

#include "kernels/device/tensor_view.h"

namespace tessera {

struct PrecisionPolicy {
  DType params = DType::f32;  // of the weights that the model computes with: what is all-gathered
  DType activations = DType::f32;  // between kernels, kept for the backward pass, and of logits
  DType gemm_inputs = DType::f32;  // of the operands of the blocks' GEMMs
  DType grads = DType::f32;        // of a block's gradients as the backward pass writes them
  DType grad_travel = DType::f32;  // of what a reduce-scatter of them carries
  friend bool operator==(const PrecisionPolicy&, const PrecisionPolicy&) = default;
};

/// What --precision names: f32 or bf16 for everything. Master weights, optimizer state, sums of
/// gradients and the gradients of embedding and LM head are f32 in either.
[[nodiscard]] constexpr PrecisionPolicy precision_of(DType dtype) {
  return {.params = dtype,
          .activations = dtype,
          .gemm_inputs = dtype,
          .grads = dtype,
          .grad_travel = dtype};
}

/// Throws ConfigError for a combination that the kernels do not compute with: all types but those
/// of `precision_of`.
void require_supported(const PrecisionPolicy& precision);

}  // namespace tessera
