// A linear layer y = x W^T (+ b), W [out, in], as the three GEMMs of forward and backward: of the
// tensors as they are, or quantised to 8 bits (quantized_blocks.h); with its adapters where it has
// some (linear_adapter.h).
#pragma once

#include "kernels/kernel_table.h"
#include "model/linear_adapter.h"
#include "model/quantized_blocks.h"

namespace tessera {

/// Of a layer whose GEMMs are quantised: its weight's codes, and room for those of the others.
struct QuantizedLinear {
  QuantizedBlocks* blocks = nullptr;  // null: they are not
  LinearKind kind = LinearKind::qkv;
  WeightCodes weight;
  /// max |x| and max |d_y|, data null where they are not quantised: [1] f32, written by whatever
  /// writes x and d_y where the next fields say so, and else by the layer.
  TensorView input_max;
  TensorView gradient_max;
  Maximum input = Maximum::unknown;
  Maximum gradient = Maximum::unknown;
};

/// Rows N, sizes in and out, and where the GEMMs may work.
struct Linear {
  const KernelTable& kernels;
  Index rows;
  Index in;
  Index out;
  TensorView workspace;
  QuantizedLinear quantized = {};
  const LinearAdapter* adapter = nullptr;  // null: it has none

  /// y [N, out] = x W^T + bias, or residual + x W^T. Data null: no bias, no residual.
  void forward(const ConstTensorView& x, const ConstTensorView& weight, const ConstTensorView& bias,
               const ConstTensorView& residual, TensorView y, Stream& stream) const;
  /// d_x [N, in] = d_y W; data null: not needed, and only what backward_weight of the adapter takes
  /// is made. Then the weight must be frozen.
  void backward_input(const ConstTensorView& d_y, const ConstTensorView& weight, TensorView d_x,
                      Stream& stream) const;
  /// d_weight [out, in] = d_y^T x, written; data null: the weight is frozen. Quantised, it takes the codes of d_y that
  /// backward_input made. Requires: that was called before with this d_y, and of no other layer
  /// since.
  void backward_weight(const ConstTensorView& d_y, const ConstTensorView& x, TensorView d_weight,
                       Stream& stream) const;

 private:
  [[nodiscard]] AdapterGemms adapter_gemms() const { return {kernels, rows, in, out, workspace}; }
};

}  // namespace tessera
