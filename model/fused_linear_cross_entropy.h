// The output layer and the loss in one, so that the [N, V] logits never exist: rows are taken in
// chunks, and each chunk's logits become its gradient in place before the next chunk starts.
//
// For each chunk of rows:
//
//   logits = hidden W^T + bias           one GEMM
//   logits <- scale * dloss/dlogits      softmax_cross_entropy, in place
//   d_hidden = dlogits W                 one GEMM
//   d_weight (+)= dlogits^T hidden       one GEMM, f32, beta 0 for the first chunk
//   d_bias (+)= column sums of dlogits   likewise
//
// (Hsu et al. 2024, arXiv:2410.10989, section 3.2, with the accumulation in f32 inside the GEMM.)
#pragma once

#include <string>

#include "kernels/device/arena.h"
#include "kernels/kernel_table.h"

namespace tessera {

enum class OutputBias : std::uint8_t { none, present };

struct LossOptions {
  std::int32_t ignore_target = -100;
  CrossEntropyTerms terms;
  OutputBias bias = OutputBias::none;
};

/// Rows of logits that exist at a time: as many as `budget_bytes` holds, a multiple of 1024 where
/// that is possible (of 64 below), never more than `tokens` rounded up, at least one. A function of
/// the sizes alone: it fixes the order of sums.
[[nodiscard]] Index chunk_rows_for(Index tokens, Index vocab, DType dtype,
                                   std::size_t budget_bytes);
/// Elements from one row of logits to the next: `vocab` rounded up to 16 bytes.
[[nodiscard]] Index logits_stride(Index vocab, DType dtype);

/// What one call reads and writes.
///
///   hidden    [N, C]  read
///   weight    [V, C]  read
///   bias      [V]     dtype of hidden; data null exactly where the options say none
///   targets   [N]     i32, ignored ones allowed
///   weights   [N]     f32, per token; data null: all 1
///   scale     [1]     f32 on the device
///   loss      [N]     f32, written: nats per token, not scaled
///   correct   [N]     u8, written; data null: not needed
struct LinearCrossEntropyInputs {
  ConstTensorView hidden;
  ConstTensorView weight;
  ConstTensorView bias;
  ConstTensorView targets;
  ConstTensorView weights;
  ConstTensorView scale;
  TensorView loss;
  TensorView correct;
};

/// Gradients of scale * sum(loss).
///
///   d_hidden  [N, C]  dtype of hidden, written
///   d_weight  [V, C]  f32 (or the dtype of hidden, to compare), overwritten: the first chunk
///                     writes, the others add; data null: the weight is frozen
///   d_bias    [V]     f32 (or the dtype of hidden), likewise; data null where there is no bias
struct LinearCrossEntropyGradients {
  TensorView d_hidden;
  TensorView d_weight;
  TensorView d_bias;
};

/// What training minimises where label smoothing or z-loss is on: "cross entropy with label
/// smoothing 0.1". Empty where it is the plain cross entropy.
[[nodiscard]] std::string objective_text(const CrossEntropyTerms& terms);

class FusedLinearCrossEntropy {
 public:
  /// Allocates chunk_rows * logits_stride(vocab) elements of `dtype`, and with a bias chunk_rows
  /// more.
  FusedLinearCrossEntropy(const KernelTable& kernels, Arena& arena, DType dtype, Index vocab,
                          Index width, Index chunk_rows, const LossOptions& options);

  /// Loss and all gradients. `gemm_workspace` as in kernels/gemm.h. Work is queued in `stream`.
  void forward_backward(const LinearCrossEntropyInputs& inputs,
                        const LinearCrossEntropyGradients& gradients, TensorView gemm_workspace,
                        Stream& stream);
  /// The plain cross entropy alone, for evaluation: the soft cap is part of the model, label
  /// smoothing and z-loss are of training and left out.
  void forward(const LinearCrossEntropyInputs& inputs, TensorView gemm_workspace, Stream& stream);

  /// [chunk_rows, stride]: after forward_backward the last chunk's gradient of the logits, for
  /// tests and benchmarks.
  [[nodiscard]] TensorView chunk_logits() noexcept { return logits_.view(); }
  [[nodiscard]] Index chunk_rows() const noexcept { return chunk_rows_; }

 private:
  /// Rows of the batch, whose logits are the buffer's first rows.
  struct Chunk {
    Index begin;
    Index count;
  };
  void multiply_logits(const LinearCrossEntropyInputs& inputs, const Chunk& chunk,
                       TensorView gemm_workspace, Stream& stream);
  void softmax(const LinearCrossEntropyInputs& inputs, const Chunk& chunk,
               const CrossEntropyTerms& terms, LogitsGradient gradient, Stream& stream);
  void multiply_hidden(const LinearCrossEntropyInputs& inputs,
                       const LinearCrossEntropyGradients& gradients, const Chunk& chunk,
                       TensorView gemm_workspace, Stream& stream);
  void multiply_weight(const LinearCrossEntropyInputs& inputs,
                       const LinearCrossEntropyGradients& gradients, const Chunk& chunk,
                       TensorView gemm_workspace, Stream& stream);
  void multiply_bias(const LinearCrossEntropyGradients& gradients, const Chunk& chunk,
                     TensorView gemm_workspace, Stream& stream);
  void prepare(const LinearCrossEntropyInputs& inputs, Stream& stream);

  const KernelTable& kernels_;
  Index vocab_;
  Index width_;
  Index stride_;
  Index chunk_rows_;
  LossOptions options_;
  DeviceBuffer logits_;  // [chunk_rows, stride]
  DeviceBuffer ones_;    // [chunk_rows] dtype, with a bias only: d_bias is their GEMM
  bool is_prepared_ = false;
};

}  // namespace tessera
