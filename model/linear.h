// A linear layer y = x W^T (+ b), W [out, in], as the three GEMMs of forward and backward.
#pragma once

#include "kernels/kernel_table.h"

namespace tessera {

/// Rows N, sizes in and out, and where the GEMMs may work.
struct Linear {
  const KernelTable& kernels;
  Index rows;
  Index in;
  Index out;
  TensorView workspace;

  /// y [N, out] = x W^T + bias, or residual + x W^T. Data null: no bias, no residual.
  void forward(const ConstTensorView& x, const ConstTensorView& weight, const ConstTensorView& bias,
               const ConstTensorView& residual, TensorView y, Stream& stream) const;
  /// d_x [N, in] = d_y W
  void backward_input(const ConstTensorView& d_y, const ConstTensorView& weight, TensorView d_x,
                      Stream& stream) const;
  /// d_weight [out, in] = d_y^T x, written
  void backward_weight(const ConstTensorView& d_y, const ConstTensorView& x, TensorView d_weight,
                       Stream& stream) const;
};

}  // namespace tessera
