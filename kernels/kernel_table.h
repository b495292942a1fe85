// The kernels of one backend, by name. The table is filled in kernels/cpu/kernel_table.cpp and
// kernels/cuda/kernel_table.cpp; a test checks that no entry is null.
#pragma once

#include "kernels/accumulate.h"
#include "kernels/adamw.h"
#include "kernels/adapter_gradients.h"
#include "kernels/attention.h"
#include "kernels/attention_cached.h"
#include "kernels/embedding.h"
#include "kernels/gemm.h"
#include "kernels/muon.h"
#include "kernels/nf4.h"
#include "kernels/quantize.h"
#include "kernels/reduction.h"
#include "kernels/rms_norm.h"
#include "kernels/rotary.h"
#include "kernels/sgd.h"
#include "kernels/softmax_cross_entropy.h"
#include "kernels/swiglu.h"
#include "kernels/write_params.h"

namespace tessera {

/// No default values: a backend that leaves one out does not compile
/// (-Werror=missing-field-initializers).
struct KernelTable {
  AccumulateFn* accumulate;
  CastRowsFn* cast_rows;
  AdamWFn* adamw;
  AdapterGradientsFn* adapter_gradients;
  AttentionForwardFn* attention_forward;
  AttentionBackwardFn* attention_backward;
  AttentionCachedFn* attention_cached;
  EmbeddingForwardFn* embedding_forward;
  EmbeddingBackwardFn* embedding_backward;
  GemmFn* gemm;
  MuonMomentumFn* muon_momentum;
  MuonNormalizeFn* muon_normalize;
  MuonUpdateFn* muon_update;
  AbsMaxFn* abs_max;
  QuantizeFn* quantize;
  SumOfSquaresFn* sum_of_squares;
  LossSumFn* loss_sum;
  ColumnSumFn* column_sum;
  RmsNormForwardFn* rms_norm_forward;
  RmsNormBackwardFn* rms_norm_backward;
  RotaryForwardFn* rotary_forward;
  RotaryBackwardFn* rotary_backward;
  SgdFn* sgd;
  SoftmaxCrossEntropyFn* softmax_cross_entropy;
  SwigluForwardFn* swiglu_forward;
  SwigluBackwardFn* swiglu_backward;
  WidenNf4Fn* widen_nf4;
  WriteParamsFn* write_params;
};

/// Throws ConfigError for `cuda` in a build without CUDA. The result lives as long as the program.
[[nodiscard]] const KernelTable& kernel_table(DeviceKind kind);

namespace cpu {
[[nodiscard]] const KernelTable& kernels();
}
namespace cuda {
[[nodiscard]] const KernelTable& kernels();  // cuda/kernel_table.cpp, or cuda_absent.cpp
}

}  // namespace tessera
