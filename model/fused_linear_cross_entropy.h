// The output layer and the loss in one, so that the [N, V] logits never exist: rows are taken in
// chunks, and each chunk's logits become its gradient in place before the next chunk starts.
//
// For each chunk of rows:  logits = hidden W^T               one GEMM
//                          logits <- scale * dloss/dlogits     softmax_cross_entropy, in place
//                          d_hidden = dlogits W                one GEMM
//                          d_weight (+)= dlogits^T hidden      one GEMM, f32, beta 0 for the first
//                          chunk
// (Hsu et al. 2024, arXiv:2410.10989, section 3.2, with the accumulation in f32 inside the GEMM.)
#pragma once

#include "kernels/device/arena.h"
#include "kernels/kernel_table.h"

namespace tessera {

struct LossOptions {
  std::int32_t ignore_target = -100;
  CrossEntropyTerms terms;
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
///   targets   [N]     i32, ignored ones allowed
///   weights   [N]     f32, per token; data null: all 1
///   scale     [1]     f32 on the device
///   loss      [N]     f32, written: nats per token, not scaled
///   correct   [N]     u8, written; data null: not wanted
struct LinearCrossEntropyInputs {
  ConstTensorView hidden;
  ConstTensorView weight;
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
///   writes,
///                     the others add
struct LinearCrossEntropyGradients {
  TensorView d_hidden;
  TensorView d_weight;
};

class FusedLinearCrossEntropy {
 public:
  /// Allocates chunk_rows * logits_stride(vocab) elements of `dtype`.
  FusedLinearCrossEntropy(const KernelTable& kernels, Arena& arena, DType dtype, Index vocab,
                          Index width, Index chunk_rows, const LossOptions& options);

  /// Loss and all gradients. `gemm_workspace` as in kernels/gemm.h. Work is queued in `stream`.
  void forward_backward(const LinearCrossEntropyInputs& inputs,
                        const LinearCrossEntropyGradients& gradients, TensorView gemm_workspace,
                        Stream& stream);
  /// Loss alone, for evaluation.
  void forward(const LinearCrossEntropyInputs& inputs, TensorView gemm_workspace, Stream& stream);

  [[nodiscard]] std::size_t workspace_bytes() const noexcept { return logits_.size_bytes(); }
  [[nodiscard]] Index chunk_rows() const noexcept { return chunk_rows_; }

 private:
  struct Chunk {
    Index begin;
    Index rows;
  };
  void logits_of(const LinearCrossEntropyInputs& inputs, const Chunk& chunk,
                 LogitsGradient gradient, TensorView gemm_workspace, Stream& stream);

  const KernelTable& kernels_;
  Index vocab_;
  Index width_;
  Index stride_;
  Index chunk_rows_;
  LossOptions options_;
  DeviceBuffer logits_;  // [chunk_rows, stride]
};

}  // namespace tessera
