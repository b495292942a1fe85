#include "model/linear.h"

namespace tessera {

void Linear::forward(const ConstTensorView& x, const ConstTensorView& weight,
                     const ConstTensorView& bias, const ConstTensorView& residual, TensorView y,
                     Stream& stream) const {
  kernels.gemm({.m = rows,
                .n = out,
                .k = in,
                .transpose_a = Transpose::no,
                .transpose_b = Transpose::yes,
                .a = x,
                .lda = in,
                .b = weight,
                .ldb = in,
                .beta = residual.data == nullptr ? 0.0F : 1.0F,
                .c = residual,
                .bias = bias,
                .d = y,
                .ldd = out,
                .workspace = workspace},
               stream);
}

void Linear::backward_input(const ConstTensorView& d_y, const ConstTensorView& weight,
                            TensorView d_x, Stream& stream) const {
  kernels.gemm({.m = rows,
                .n = in,
                .k = out,
                .transpose_a = Transpose::no,
                .transpose_b = Transpose::no,
                .a = d_y,
                .lda = out,
                .b = weight,
                .ldb = in,
                .beta = 0.0F,
                .c = {},
                .bias = {},
                .d = d_x,
                .ldd = in,
                .workspace = workspace},
               stream);
}

void Linear::backward_weight(const ConstTensorView& d_y, const ConstTensorView& x,
                             TensorView d_weight, Stream& stream) const {
  kernels.gemm({.m = out,
                .n = in,
                .k = rows,
                .transpose_a = Transpose::yes,
                .transpose_b = Transpose::no,
                .a = d_y,
                .lda = out,
                .b = x,
                .ldb = in,
                .beta = 0.0F,
                .c = {},
                .bias = {},
                .d = d_weight,
                .ldd = in,
                .workspace = workspace},
               stream);
}

}  // namespace tessera
