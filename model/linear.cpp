#include "model/linear.h"

namespace tessera {
namespace {

TensorView workspace_of(const Linear& linear) {
  const TensorView own =
      linear.quantized.blocks == nullptr ? TensorView{} : linear.quantized.blocks->workspace();
  return own.data == nullptr ? linear.workspace : own;
}

}  // namespace

void Linear::forward(const ConstTensorView& x, const ConstTensorView& weight,
                     const ConstTensorView& bias, const ConstTensorView& residual, TensorView y,
                     Stream& stream) const {
  QuantizedBlocks* const blocks = quantized.blocks;
  const bool is_plain = blocks == nullptr;
  // The large GEMM adds to what the small ones wrote, on its way: the other way round y would be read
  // and written once more.
  const bool adapter_first = adapter != nullptr && adapter->covers(out);
  if (adapter_first) {
    adapter_gemms().forward(*adapter, x, residual, y, stream);
  }
  const ConstTensorView added = adapter_first ? ConstTensorView(y) : residual;
  kernels.gemm(
      {.m = rows,
       .n = out,
       .k = in,
       .transpose_a = Transpose::no,
       .transpose_b = Transpose::yes,
       .a = is_plain ? GemmOperand(x)
                     : blocks->quantize_input(x, quantized.input_max, quantized.input, stream),
       .lda = in,
       .b = is_plain ? GemmOperand(weight) : quantized.weight.codes,
       .ldb = in,
       .beta = added.data == nullptr ? 0.0F : 1.0F,
       .c = added,
       .bias = bias,
       .d = y,
       .ldd = out,
       .workspace = workspace_of(*this),
       .accumulation = is_plain ? Accumulation::full : blocks->forward_accumulation()},
      stream);
  if (adapter != nullptr && !adapter_first) {
    adapter_gemms().forward(*adapter, x, y, y, stream);
  }
}

void Linear::backward_input(const ConstTensorView& d_y, const ConstTensorView& weight,
                            TensorView d_x, Stream& stream) const {
  QuantizedBlocks* const blocks = quantized.blocks;
  const bool is_plain = blocks == nullptr;
  if (adapter != nullptr) {
    adapter_gemms().backward_input(*adapter, d_y, d_x, stream);
  }
  if (d_x.data == nullptr) {
    return;
  }
  kernels.gemm(
      {.m = rows,
       .n = in,
       .k = out,
       .transpose_a = Transpose::no,
       .transpose_b = is_plain ? Transpose::no : Transpose::yes,
       .a = is_plain ? GemmOperand(d_y)
                     : blocks->quantize_gradient(d_y, quantized.gradient_max, quantized.gradient,
                                                 quantized.kind, stream),
       .lda = out,
       .b = is_plain ? GemmOperand(weight) : quantized.weight.transposed,
       .ldb = is_plain ? in : out,
       .beta = adapter == nullptr ? 0.0F : 1.0F,
       .c = adapter == nullptr ? ConstTensorView{} : ConstTensorView(d_x),
       .bias = {},
       .d = d_x,
       .ldd = in,
       .workspace = workspace_of(*this)},
      stream);
}

void Linear::backward_weight(const ConstTensorView& d_y, const ConstTensorView& x,
                             TensorView d_weight, Stream& stream) const {
  if (adapter != nullptr) {
    adapter_gemms().backward_weight(*adapter, d_y, x, stream);
  }
  if (d_weight.data == nullptr) {
    return;
  }
  QuantizedBlocks* const blocks = quantized.blocks;
  const bool is_plain = blocks == nullptr;
  kernels.gemm({.m = out,
                .n = in,
                .k = rows,
                .transpose_a = is_plain ? Transpose::yes : Transpose::no,
                .transpose_b = is_plain ? Transpose::no : Transpose::yes,
                .a = is_plain ? GemmOperand(d_y) : blocks->transposed_gradient(out),
                .lda = is_plain ? out : rows,
                .b = is_plain ? GemmOperand(x)
                              : blocks->quantize_transposed_input(x, quantized.input_max,
                                                                  quantized.kind, stream),
                .ldb = is_plain ? in : rows,
                .beta = 0.0F,
                .c = {},
                .bias = {},
                .d = d_weight,
                .ldd = in,
                .workspace = workspace_of(*this)},
               stream);
}

}  // namespace tessera
