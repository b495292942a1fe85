// The output layer and the loss in one, so that the [N, V] logits never exist: rows are taken in
// chunks, and each chunk's logits become its gradient in place before the next chunk starts.
#pragma once

#include "kernels/device/device_buffer.h"
#include "kernels/kernel_table.h"

namespace tessera {

class FusedLinearCrossEntropy {
 public:
  /// `chunk_rows` rows of logits at a time: chunk_rows * vocab elements of `dtype` are allocated.
  FusedLinearCrossEntropy(const KernelTable& kernels, Device device, DType dtype, Index vocab,
                          Index chunk_rows);

  /// Loss and all gradients of   loss = cross_entropy(hidden * weight^T, targets).
  ///
  ///   hidden    [N, C]  read
  ///   weight    [V, C]  read
  ///   targets   [N]     i32, ignored ones allowed
  ///   loss      [N]     f32, written, nats per token, not scaled
  ///   d_hidden  [N, C]  written
  ///   d_weight  [V, C]  f32, overwritten: the first chunk writes, the others add
  ///   scale     [1]     f32 on the device
  ///
  /// The gradients are those of scale * sum(loss). Work is queued in `stream`.
  void forward_backward(ConstTensorView hidden, ConstTensorView weight, ConstTensorView targets,
                        ConstTensorView scale, TensorView loss, TensorView d_hidden,
                        TensorView d_weight, Stream& stream);

  /// Loss alone, for evaluation.
  void forward(ConstTensorView hidden, ConstTensorView weight, ConstTensorView targets,
               TensorView loss, Stream& stream);

  [[nodiscard]] std::size_t workspace_bytes() const noexcept { return logits_.size_bytes(); }

 private:
  const KernelTable* kernels_;
  DeviceBuffer logits_;  // [chunk_rows, V]
};

}  // namespace tessera
