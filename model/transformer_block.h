// Forward and backward of one block:
//
//   middle = x + attention(norm(x)) Wo^T
//   output = middle + swiglu(norm(middle) Wgu^T) Wd^T
//
// and a bias behind each GEMM where the model has one.
// Backward takes the gradient of the output and turns it in place into that of the input.
#pragma once

#include "kernels/kernel_table.h"
#include "model/activations.h"
#include "model/param_layout.h"

namespace tessera {

/// One unit's tensors as views, of parameters or of gradients. Data null where the model has none.
template <typename View>
struct BlockTensors {
  View attention_norm;  // [C]
  View qkv;             // [(Hq + 2 Hkv) D, C]
  View qkv_bias;        // [(Hq + 2 Hkv) D]
  View q_norm;          // [D]
  View k_norm;          // [D]
  View out;             // [C, Hq D]
  View out_bias;        // [C]
  View mlp_norm;        // [C]
  View gate_up;         // [2 F, C]
  View gate_up_bias;    // [2 F]
  View down;            // [C, F]
  View down_bias;       // [C]
};

/// The tensors of `unit` within `storage`, which is laid out as the unit.
[[nodiscard]] BlockTensors<ConstTensorView> block_tensors(const ParamUnit& unit,
                                                          const ConstTensorView& storage);
[[nodiscard]] BlockTensors<TensorView> block_tensors(const ParamUnit& unit,
                                                     const TensorView& storage);

class TransformerBlock {
 public:
  /// Keeps references to `kernels`, `config` and `activations`, which must outlive it.
  TransformerBlock(const KernelTable& kernels, const ModelConfig& config, const BatchShape& batch,
                   const AttentionOptions& attention, Activations& activations);

  /// Block `layer` from its residual to the next one's.
  void forward(Index layer, const BlockTensors<ConstTensorView>& params, Stream& stream);

  /// d_hidden [N, C]: the gradient of the block's output, overwritten with that of its input. Every
  /// element of `grads` is written. What `dropped` names is computed again first.
  void backward(Index layer, const BlockTensors<ConstTensorView>& params,
                const BlockTensors<TensorView>& grads, TensorView d_hidden, Recompute dropped,
                Stream& stream);

 private:
  void forward_attention(Index layer, const BlockActivations& a,
                         const BlockTensors<ConstTensorView>& params, Stream& stream);
  void forward_middle(const BlockActivations& a, const BlockTensors<ConstTensorView>& params,
                      Stream& stream);
  void forward_gate_up(const BlockActivations& a, const BlockTensors<ConstTensorView>& params,
                       Stream& stream);
  void backward_mlp(const BlockActivations& a, const BlockTensors<ConstTensorView>& params,
                    const BlockTensors<TensorView>& grads, TensorView d_hidden, Stream& stream);
  void backward_attention(Index layer, const BlockActivations& a,
                          const BlockTensors<ConstTensorView>& params,
                          const BlockTensors<TensorView>& grads, TensorView d_hidden,
                          Stream& stream);

  // `grad` [K] is the sum of the rows of `d_y` [N, K]; nothing where the model has no such bias.
  void backward_bias(const ConstTensorView& d_y, const TensorView& grad, Stream& stream);

  const KernelTable& kernels_;
  const ModelConfig& config_;
  BatchShape batch_;
  AttentionOptions attention_;
  Activations& activations_;
};

}  // namespace tessera
