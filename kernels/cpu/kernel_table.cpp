#include "kernels/kernel_table.h"

namespace tessera::cpu {

const KernelTable& kernels() {
  static constexpr KernelTable kTable = {
      .accumulate = accumulate,
      .cast_rows = cast_rows,
      .adamw = adamw,
      .adapter_gradients = adapter_gradients,
      .attention_forward = attention_forward,
      .attention_backward = attention_backward,
      .attention_cached = attention_cached,
      .embedding_forward = embedding_forward,
      .embedding_backward = embedding_backward,
      .gemm = gemm,
      .muon_momentum = muon_momentum,
      .muon_normalize = muon_normalize,
      .muon_update = muon_update,
      .abs_max = abs_max,
      .quantize = quantize,
      .sum_of_squares = sum_of_squares,
      .loss_sum = loss_sum,
      .column_sum = column_sum,
      .rms_norm_forward = rms_norm_forward,
      .rms_norm_backward = rms_norm_backward,
      .rotary_forward = rotary_forward,
      .rotary_backward = rotary_backward,
      .sgd = sgd,
      .softmax_cross_entropy = softmax_cross_entropy,
      .swiglu_forward = swiglu_forward,
      .swiglu_backward = swiglu_backward,
      .widen_nf4 = widen_nf4,
      .write_params = write_params,
  };
  return kTable;
}

}  // namespace tessera::cpu
