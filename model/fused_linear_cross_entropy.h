// The output layer and the loss in one, so that the [N, V] logits never exist: rows are taken in
// chunks, and each chunk's logits become its gradient in place before the next chunk starts.
//
// For each chunk of rows:  logits = hidden W^T + bias        one GEMM
//                          logits <- scale * dloss/dlogits     softmax_cross_entropy, in place
//                          d_hidden = dlogits W                one GEMM
//                          d_weight (+)= dlogits^T hidden      one GEMM, f32, beta 0 for the first
//                          chunk
//                          d_bias (+)= column sums of dlogits  likewise
// (Hsu et al. 2024, arXiv:2410.10989, section 3.2, with the accumulation in f32 inside the GEMM.)
#pragma once

#include <optional>

#include "kernels/device/arena.h"
#include "kernels/kernel_table.h"

namespace tessera {

/// How a chunk's work lies over two streams of a GPU. Serial by default. Whatever a schedule, the
/// same terms are added in the same order where the products' algorithms are the same.
struct LossSchedule {
  // Parts of a chunk's rows: the softmax of one runs beside a product of the next. 1: one after the
  // other.
  Index pieces = 1;
  // What the softmax keeps to meanwhile, the product to the others.
  int softmax_multiprocessors = 0;
  // What d_weight keeps to while d_hidden is made on the others; 0: one after the other.
  int weight_multiprocessors = 0;

  [[nodiscard]] bool overlaps() const noexcept { return pieces > 1 || weight_multiprocessors > 0; }
};

enum class OutputBias : std::uint8_t { none, present };

struct LossOptions {
  std::int32_t ignore_target = -100;
  CrossEntropyTerms terms;
  OutputBias bias = OutputBias::none;
  LossSchedule schedule;
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
///   correct   [N]     u8, written; data null: not wanted
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
///   writes,
///                     the others add
///   d_bias    [V]     f32 (or the dtype of hidden), likewise; data null where there is no bias
struct LinearCrossEntropyGradients {
  TensorView d_hidden;
  TensorView d_weight;
  TensorView d_bias;
};

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
  /// Loss alone, for evaluation.
  void forward(const LinearCrossEntropyInputs& inputs, TensorView gemm_workspace, Stream& stream);

  [[nodiscard]] std::size_t workspace_bytes() const noexcept { return logits_.size_bytes(); }
  /// [chunk_rows, stride]: after forward_backward the last chunk's gradient of the logits, for
  /// tests and benchmarks.
  [[nodiscard]] TensorView chunk_logits() noexcept { return logits_.view(); }
  [[nodiscard]] Index chunk_rows() const noexcept { return chunk_rows_; }

 private:
  /// Rows of the batch; their logits lie in the buffer from row `place`.
  struct Rows {
    Index begin;
    Index count;
    Index place;
  };
  /// What a product works in: with `multiprocessors` 0 on all of them.
  struct Place {
    TensorView workspace;
    int multiprocessors;
    Stream& stream;
  };
  void multiply_logits(const LinearCrossEntropyInputs& inputs, const Rows& rows,
                       const Place& place);
  void softmax(const LinearCrossEntropyInputs& inputs, const Rows& rows, LogitsGradient gradient,
               int multiprocessors, Stream& stream);
  void multiply_hidden(const LinearCrossEntropyInputs& inputs,
                       const LinearCrossEntropyGradients& gradients, const Rows& rows,
                       const Place& place);
  void multiply_weight(const LinearCrossEntropyInputs& inputs,
                       const LinearCrossEntropyGradients& gradients, const Rows& chunk,
                       const Place& place);
  void multiply_bias(const LinearCrossEntropyGradients& gradients, const Rows& chunk,
                     const Place& place);
  void run_chunk(const LinearCrossEntropyInputs& inputs,
                 const LinearCrossEntropyGradients& gradients, const Rows& chunk,
                 TensorView gemm_workspace, Stream& stream);
  [[nodiscard]] TensorView logits_from(Index row);
  void prepare(const LinearCrossEntropyInputs& inputs, Stream& stream);

  const KernelTable& kernels_;
  Index vocab_;
  Index width_;
  Index stride_;
  Index chunk_rows_;
  LossOptions options_;
  DeviceBuffer logits_;  // [chunk_rows, stride]
  DeviceBuffer ones_;    // [chunk_rows] dtype, with a bias only: what d_bias is a product with
  // Made by the first call that needs them: a plan is made without a GPU.
  std::optional<Stream> side_;
  int multiprocessors_ = 0;  // of the device
  Event ready_;              // in the main stream: the side stream may go on
  Event done_;               // in the side stream
  bool is_prepared_ = false;
};

}  // namespace tessera
