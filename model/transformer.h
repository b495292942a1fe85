// The network on one rank: embedding, blocks, final norm, output layer with the loss. Parameters
// come unit by unit through a ParamGate and gradients go unit by unit into a GradSink; it knows
// nothing of ranks, shards or optimizers.
#pragma once

#include <optional>
#include <vector>

#include "model/activations.h"
#include "model/fused_linear_cross_entropy.h"
#include "model/grad_sink.h"
#include "model/param_gate.h"
#include "model/quantized_blocks.h"
#include "model/transformer_block.h"

namespace tessera {

/// One micro-batch on the device, N = B * T.
struct DeviceBatch {
  ConstTensorView inputs;       // [N] i32, each in [0, V)
  ConstTensorView targets;      // [N] i32, ignored ones allowed
  ConstTensorView token_order;  // [N] i32, see embedding.h
  DocumentBounds documents = {};
};

/// Micro-batches whose passes run side by side, unit by unit, so that a unit's parameters are asked
/// for once for all of them and may come slowly. Numbers 0 .. own-1 are this rank's; up to `most`,
/// which is the same on every rank, it takes part without computing: acquiring may be collective.
class MicroBatchGroup {
 public:
  MicroBatchGroup(Index own, Index most) : own_(own), most_(most) {}
  virtual ~MicroBatchGroup() = default;
  MicroBatchGroup(const MicroBatchGroup&) = delete;
  MicroBatchGroup& operator=(const MicroBatchGroup&) = delete;

  [[nodiscard]] Index own() const noexcept { return own_; }  // at most `most`
  [[nodiscard]] Index most() const noexcept { return most_; }
  /// Micro-batch i, whose copy is queued. They may share memory but for their documents, which all
  /// blocks look at.
  [[nodiscard]] virtual DeviceBatch batch(Index i) = 0;
  /// In the backward pass: gradients that are committed from now on are those of micro-batch i.
  virtual void begins_backward(Index /*i*/) {}
  /// The losses of micro-batch i are written.
  virtual void has_losses(Index /*i*/) {}

 private:
  Index own_;
  Index most_;
};

class Transformer {
 public:
  /// Keeps references to all but `batch`, `attention` and `work`; they must outlive it. `quantized`:
  /// for training with quantised GEMMs; null where none are. `adapters`: what is trained where
  /// `layout`, the model's, is frozen; null where it is trained itself.
  Transformer(const KernelTable& kernels, const ModelConfig& config, const ParamLayout& layout,
              const BatchShape& batch, const AttentionOptions& attention, Activations& activations,
              FusedLinearCrossEntropy& loss, QuantizedBlocks* quantized = nullptr,
              const AdapterLayout* adapters = nullptr, const TensorView& adapter_gradients = {});

  /// Once before the first batch, so that none waits for what may be prepared. Overwrites
  /// activations.
  void prepare(Stream& compute);

  /// Losses and the gradients of scale * sum(losses) by all that is trained.
  ///
  ///   scale   [1]  f32 on the device: 1 / targets of the global batch
  ///   losses  [N]  f32, written: nats per token, 0 where ignored
  ///
  /// Every unit is acquired for the forward and for the backward pass, and committed once; but for
  /// blocks whose codes of 8 bits are all that is needed (QuantizedBlocks::holds). Work is queued in
  /// `compute`.
  void forward_backward(const DeviceBatch& batch, const ConstTensorView& scale, TensorView losses,
                        const ModelParams& params, GradSink& grads, Stream& compute);

  /// The same in two parts, for several micro-batches at a time: first the blocks of all of them.
  /// Set i of the activations keeps block inputs of micro-batch i.
  void forward_together(MicroBatchGroup& group, const ModelParams& params, Stream& compute);
  /// Then the head, the losses and the gradients of micro-batch `set` of them, all of whose blocks are
  /// recomputed from their inputs, whatever their levels. Bit-identical to forward_backward.
  void backward_of(Index set, const DeviceBatch& batch, const ConstTensorView& scale,
                   TensorView losses, const ModelParams& params, GradSink& grads, Stream& compute);
  /// Or of all of them, unit by unit; the losses of one are overwritten by the next. Each unit is
  /// committed once for each micro-batch, in their order. Bit-identical to backward_of one after the
  /// other. Requires: `most` sets of gradients in the activations; embedding and head are not tied,
  /// because then one gradient would be under way from the head to the embedding.
  void backward_together(MicroBatchGroup& group, const ConstTensorView& scale, TensorView losses,
                         const ModelParams& params, GradSink& grads, Stream& compute);

  /// Plain cross entropies (FusedLinearCrossEntropy::forward), and which targets are the likeliest
  /// token.
  ///
  ///   losses   [N]  f32, written
  ///   correct  [N]  u8, written: 1 where the target has the largest logit, 0 where ignored
  void forward(const DeviceBatch& batch, TensorView losses, TensorView correct,
               const ModelParams& params, Stream& compute);

  /// What the forward and the backward half of forward_backward (forward_together, backward_of) and
  /// `forward` acquire and commit, in the same order, without computing: for a rank without a
  /// micro-batch where others have one and acquiring is collective. Gradients stay unwritten.
  void idle_forward(const ModelParams& params, Stream& compute);
  void idle_backward(const ModelParams& params, GradSink& grads, Stream& compute);
  void idle_evaluation(const ModelParams& params, Stream& compute);

  [[nodiscard]] const ParamLayout& layout() const noexcept { return layout_; }

 private:
  struct Head {
    ParamLease lease;
    std::optional<ParamLease> table;  // that the matrix is in, where the head's own unit has none
    ConstTensorView norm;             // [C]
    ConstTensorView weight;           // [V, C]
  };
  void embed(const DeviceBatch& batch, const ConstTensorView& storage, Keep keep, Stream& compute);
  void forward_blocks(MicroBatchGroup& group, Keep keep, QuantizedBlocks* quantized,
                      const ModelParams& params, Stream& compute);
  // A block's parameters for as long as they are needed, and its adapters where there are some; no
  // lease on parameters where codes are enough.
  struct HeldBlock {
    std::optional<ParamLease> lease;
    std::optional<ParamLease> of_adapters;
    BlockTensors<ConstTensorView> tensors;
    QuantizedBlocks* quantized = nullptr;  // null: its GEMMs are not quantised
    BlockAdapters adapters;
    [[nodiscard]] BlockParams params() const {
      return {tensors, quantized, of_adapters ? &adapters : nullptr};
    }
  };
  [[nodiscard]] HeldBlock hold(Index layer, QuantizedBlocks* quantized, CodeUse use,
                               const ModelParams& params, Stream& compute) const;
  // The adapters of a held block with the places of their gradients; none in a forward pass.
  void place_adapters(Index layer, const TensorView& grads, Recompute dropped,
                      HeldBlock& block) const;
  [[nodiscard]] ParamLease acquire_embedding(const ModelParams& params, Stream& compute) const;
  // What is trained, in the units of its layout; an embedding is the first unit of either.
  [[nodiscard]] const ParamLayout& trained_layout() const {
    return adapters_ == nullptr ? layout_ : adapters_->params();
  }
  [[nodiscard]] bool is_embedding_trained() const {
    return adapters_ == nullptr || adapters_->embedding().has_value();
  }
  [[nodiscard]] std::optional<UnitId> trained_head() const {
    return adapters_ == nullptr ? std::optional(layout_.head()) : adapters_->head();
  }
  [[nodiscard]] UnitId trained_block(Index layer) const {
    return adapters_ == nullptr ? static_cast<UnitId>(layer) + 1 : adapters_->block(layer);
  }
  // What is left of the forward pass: what blocks keep, or their inputs alone.
  enum class Left : std::uint8_t { kept, inputs };
  // Micro-batch i of the group has set first + i of the activations.
  void backward_all(MicroBatchGroup& group, Index first, const ConstTensorView& scale,
                    TensorView losses, const ModelParams& params, GradSink& grads, Left left,
                    Stream& compute);
  [[nodiscard]] Head head(const ModelParams& params, Stream& compute);
  void backward_head(const DeviceBatch& batch, const ConstTensorView& scale, TensorView losses,
                     const Head& head, TensorView d_weight, TensorView d_norm, Stream& compute);
  void backward_embedding(const DeviceBatch& batch, TensorView d_table, Stream& compute);

  const KernelTable& kernels_;
  const ModelConfig& config_;
  const ParamLayout& layout_;
  Activations& activations_;
  FusedLinearCrossEntropy& loss_;
  QuantizedBlocks* quantized_;
  const AdapterLayout* adapters_;
  TensorView d_adapters_;  // AdapterWork::d_hidden
  TransformerBlock block_;
  std::vector<DocumentBounds> documents_;  // of each set whose blocks run together
};

}  // namespace tessera
