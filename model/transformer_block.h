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
#include "model/linear.h"
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

/// A block's parameters, and, where its GEMMs are quantised, their codes, or its adapters.
struct BlockParams : BlockTensors<ConstTensorView> {
  QuantizedBlocks* quantized = nullptr;     // null: they are not; else it has this layer
  const BlockAdapters* adapters = nullptr;  // null: it has none

  // NOLINTNEXTLINE(google-explicit-constructor): the tensors as they are
  BlockParams(const BlockTensors<ConstTensorView>& tensors,
              QuantizedBlocks* the_quantized = nullptr, const BlockAdapters* the_adapters = nullptr)
      : BlockTensors<ConstTensorView>(tensors), quantized(the_quantized), adapters(the_adapters) {}
};

/// Whether the gradient of a block's input is needed. Without it the block's own weights must be frozen:
/// its backward pass then ends at the first of its linear layers that has an adapter.
enum class InputGradient : std::uint8_t { needed, unneeded };

class TransformerBlock {
 public:
  /// Keeps references to `kernels`, `config` and `activations`, which must outlive it.
  TransformerBlock(const KernelTable& kernels, const ModelConfig& config, const BatchShape& batch,
                   const AttentionOptions& attention, Activations& activations);

  /// Before the first batch with documents, if there will be some (prepare_attention): of the layer's
  /// attention.
  void prepare(Index layer, Stream& stream);

  /// Block `layer` from its residual to the next one's. `documents`: those of the batch.
  void forward(Index layer, const BlockParams& params, const DocumentBounds& documents,
               Stream& stream);

  /// d_hidden [N, C]: the gradient of the block's output (quantised, with its maximum in
  /// gradient_max(LinearKind::down) where the next block is quantised too, or this is the last), overwritten with that of its input,
  /// or with anything where that is unneeded. Every element of `grads`, and of the adapters' gradients, is written; data null:
  /// that parameter is frozen. What `dropped` names is computed again first.
  void backward(Index layer, const BlockParams& params, const DocumentBounds& documents,
                const BlockTensors<TensorView>& grads, TensorView d_hidden, InputGradient input,
                Recompute dropped, Stream& stream);

 private:
  [[nodiscard]] Linear linear(Index layer, const BlockParams& params, LinearKind kind) const;
  [[nodiscard]] AttentionForwardArgs attention_args(Index layer, const BlockActivations& a) const;
  [[nodiscard]] AttentionBackwardArgs attention_backward_args(Index layer,
                                                              const BlockActivations& a) const;
  void forward_attention(Index layer, const BlockActivations& a, const BlockParams& params,
                         const DocumentBounds& documents, Stream& stream);
  void forward_middle(Index layer, const BlockActivations& a, const BlockParams& params,
                      Stream& stream);
  void forward_gate_up(Index layer, const BlockActivations& a, const BlockParams& params,
                       Stream& stream);
  // Whether it got to the gradient of `middle`, which is then in d_hidden.
  bool backward_mlp(Index layer, const BlockActivations& a, const BlockParams& params,
                    const BlockTensors<TensorView>& grads, TensorView d_hidden, InputGradient input,
                    Stream& stream);
  void backward_attention(Index layer, const BlockActivations& a, const BlockParams& params,
                          const DocumentBounds& documents, const BlockTensors<TensorView>& grads,
                          TensorView d_hidden, InputGradient input, Stream& stream);
  // Of the adapter of a layer behind a norm, where no more is needed.
  void backward_behind_norm(const Linear& linear, const ConstTensorView& d_y,
                            const ConstTensorView& x, const ConstTensorView& gain, Stream& stream);

  // `grad` [K] is the sum of the rows of `d_y` [N, K]; nothing where the model has no such bias.
  void backward_bias(const ConstTensorView& d_y, const TensorView& grad, Stream& stream);

  const KernelTable& kernels_;
  const ModelConfig& config_;
  BatchShape batch_;
  AttentionOptions attention_;
  Activations& activations_;
};

}  // namespace tessera
