#include "model/transformer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/base/progress.h"
#include "kernels/base/trace.h"

namespace tessera {
namespace {

constexpr UnitId kEmbedding = 0;
constexpr std::size_t kVectors = 8;

// The norm gains and biases of a block, always in this order.
template <typename View>
std::array<View*, kVectors> vectors_of(BlockTensors<View>& tensors) {
  return {&tensors.attention_norm, &tensors.qkv_bias, &tensors.q_norm,       &tensors.k_norm,
          &tensors.out_bias,       &tensors.mlp_norm, &tensors.gate_up_bias, &tensors.down_bias};
}

class OneBatch final : public MicroBatchGroup {
 public:
  explicit OneBatch(const DeviceBatch& batch) : MicroBatchGroup(1, 1), batch_(batch) {}
  DeviceBatch batch(Index /*i*/) override { return batch_; }

 private:
  const DeviceBatch& batch_;
};

class NoBatch final : public MicroBatchGroup {
 public:
  NoBatch() : MicroBatchGroup(0, 1) {}
  DeviceBatch batch(Index /*i*/) override { return {}; }
};

template <typename View>
View tensor_view(const ParamUnit& unit, std::string_view suffix, const View& storage) {
  const ParamTensor& tensor = part(unit, suffix);
  return storage.slice(tensor.offset, tensor.offset + tensor.count()).reshaped(tensor.shape);
}

}  // namespace

Transformer::Transformer(const KernelTable& kernels, const ModelConfig& config,
                         const ParamLayout& layout, const BatchShape& batch,
                         const AttentionOptions& attention, Activations& activations,
                         FusedLinearCrossEntropy& loss, QuantizedBlocks* quantized,
                         const AdapterLayout* adapters, const TensorView& adapter_gradients)
    : kernels_(kernels),
      config_(config),
      layout_(layout),
      activations_(activations),
      loss_(loss),
      quantized_(quantized),
      adapters_(adapters),
      d_adapters_(adapter_gradients),
      block_(kernels, config, batch, attention, activations) {
  TESSERA_REQUIRE(adapters == nullptr || quantized == nullptr, "adapters beside GEMMs as they are");
}

void Transformer::prepare(Stream& compute) {
  for (Index layer = 0; layer < config_.num_layers; ++layer) {
    // one of each kind
    if (layer == 0 || config_.window_of(layer) != config_.window_of(layer - 1)) {
      block_.prepare(layer, compute);
    }
  }
}

void Transformer::embed(const DeviceBatch& batch, const ConstTensorView& storage, Keep keep,
                        Stream& compute) {
  activations_.inputs().will_write(0, compute);
  kernels_.embedding_forward({.tokens = batch.inputs,
                              .order = batch.token_order,
                              .table = tensor_view(layout_.unit(kEmbedding), "weight", storage),
                              .out = activations_.residual(0)},
                             compute);
  activations_.inputs().written(0, keep, compute);
}

void Transformer::forward_together(MicroBatchGroup& group, const ModelParams& params,
                                   Stream& compute) {
  forward_blocks(group, Keep::inputs, quantized_, params, compute);
}

ParamLease Transformer::acquire_embedding(const ModelParams& params, Stream& compute) const {
  return is_embedding_trained() && adapters_ != nullptr
             ? params.adapters->acquire(*adapters_->embedding(), compute)
             : params.base.acquire(kEmbedding, compute);
}

void Transformer::place_adapters(Index layer, const TensorView& grads, Recompute dropped,
                                 HeldBlock& block) const {
  if (adapters_ != nullptr) {
    block.adapters = block_adapters(config_, *adapters_, layer, block.of_adapters->params(), grads,
                                    {.hidden = activations_.block(layer).adapters,
                                     .d_hidden = d_adapters_,
                                     .dropped = dropped});
  }
}

// Codes are made even where there is no micro-batch: every rank acquires the same blocks later on.
Transformer::HeldBlock Transformer::hold(Index layer, QuantizedBlocks* quantized, CodeUse use,
                                         const ModelParams& params, Stream& compute) const {
  const UnitId id = static_cast<UnitId>(layer) + 1;
  const bool has_codes = quantized != nullptr && quantized->has(layer);
  HeldBlock block;
  block.quantized = has_codes ? quantized : nullptr;
  if (has_codes && quantized->replaces_params() &&
      quantized->holds(layer, params.base.current_version(id, compute))) {
    const auto vectors = vectors_of(block.tensors);
    for (std::size_t i = 0; i < vectors.size(); ++i) {
      *vectors[i] = quantized->vector(layer, i);
    }
    quantized->complete(layer, use, compute);
    return block;
  }
  block.lease.emplace(params.base.acquire(id, compute));
  block.tensors = block_tensors(layout_.unit(id), block.lease->params());
  if (has_codes) {
    BlockTensors<ConstTensorView>& tensors = block.tensors;
    std::array<ConstTensorView, kVectors> vectors;
    std::ranges::transform(vectors_of(tensors), vectors.begin(),
                           [](const ConstTensorView* view) { return *view; });
    quantized->refresh(layer, {tensors.qkv, tensors.out, tensors.gate_up, tensors.down}, vectors,
                       block.lease->version(), use, compute);
  }
  if (adapters_ != nullptr) {
    block.of_adapters.emplace(params.adapters->acquire(adapters_->block(layer), compute));
    place_adapters(layer, {}, Recompute::none, block);
  }
  return block;
}

void Transformer::forward_blocks(MicroBatchGroup& group, Keep keep, QuantizedBlocks* quantized,
                                 const ModelParams& params, Stream& compute) {
  enter_phase("forward");
  documents_.resize(std::max(documents_.size(), static_cast<std::size_t>(group.own())));
  {
    const ParamLease embedding = acquire_embedding(params, compute);
    for (Index set = 0; set < group.own(); ++set) {
      activations_.use_set(set);
      const DeviceBatch batch = group.batch(set);
      const TraceRange range({TraceCategory::compute, "forward", layout_.unit(kEmbedding).name},
                             compute);
      embed(batch, embedding.params(), keep, compute);
      documents_[static_cast<std::size_t>(set)] = batch.documents;
    }
  }
  for (Index layer = 0; layer < config_.num_layers; ++layer) {
    const HeldBlock block = hold(layer, quantized, CodeUse::forward, params, compute);
    const TraceRange range(
        {TraceCategory::compute, "forward", layout_.unit(static_cast<UnitId>(layer) + 1).name},
        compute);
    for (Index set = 0; set < group.own(); ++set) {
      activations_.use_set(set);
      activations_.inputs().will_write(layer + 1, compute);
      block_.forward(layer, block.params(), documents_[static_cast<std::size_t>(set)], compute);
      activations_.inputs().written(layer + 1, keep, compute);
    }
  }
  activations_.use_set(0);
}

void Transformer::idle_forward(const ModelParams& params, Stream& compute) {
  NoBatch none;
  forward_blocks(none, Keep::nothing, quantized_, params, compute);
}

void Transformer::backward_of(Index set, const DeviceBatch& batch, const ConstTensorView& scale,
                              TensorView losses, const ModelParams& params, GradSink& grads,
                              Stream& compute) {
  OneBatch one(batch);
  backward_all(one, set, scale, losses, params, grads, Left::inputs, compute);
}

void Transformer::backward_together(MicroBatchGroup& group, const ConstTensorView& scale,
                                    TensorView losses, const ModelParams& params, GradSink& grads,
                                    Stream& compute) {
  TESSERA_REQUIRE(!layout_.is_tied(), "batched backward passes are for untied embeddings");
  backward_all(group, 0, scale, losses, params, grads, Left::inputs, compute);
}

Transformer::Head Transformer::head(const ModelParams& params, Stream& compute) {
  const ParamUnit& unit = layout_.unit(layout_.head());
  Head head = {
      .lease = params.base.acquire(layout_.head(), compute), .table = {}, .norm = {}, .weight = {}};
  head.norm = tensor_view(unit, "norm", head.lease.params());
  if (layout_.is_tied()) {
    head.table.emplace(acquire_embedding(params, compute));
    head.weight = tensor_view(layout_.unit(kEmbedding), "weight", head.table->params());
  } else if (adapters_ != nullptr && is_embedding_trained()) {
    const UnitId trained = *adapters_->head();
    head.table.emplace(params.adapters->acquire(trained, compute));
    head.weight = tensor_view(adapters_->params().unit(trained), "weight", head.table->params());
  } else {
    head.weight = tensor_view(unit, "weight", head.lease.params());
  }
  return head;
}

void Transformer::backward_head(const DeviceBatch& batch, const ConstTensorView& scale,
                                TensorView losses, const Head& head, TensorView d_weight,
                                TensorView d_norm, Stream& compute) {
  enter_phase("loss");
  const TraceRange range({TraceCategory::compute, "loss", layout_.unit(layout_.head()).name},
                         compute);
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const TensorView last = activations_.residual(config_.num_layers);
  const TensorView normed = activations_.normed();
  const TensorView d_hidden = activations_.d_hidden();
  kernels_.rms_norm_forward({.x = last, .gain = head.norm, .y = normed, .eps = eps}, compute);
  loss_.forward_backward({.hidden = normed,
                          .weight = head.weight,
                          .bias = {},
                          .targets = batch.targets,
                          .weights = {},
                          .scale = scale,
                          .loss = losses,
                          .correct = {}},
                         {.d_hidden = d_hidden, .d_weight = d_weight, .d_bias = {}},
                         activations_.gemm_workspace(), compute);
  kernels_.rms_norm_backward(
      {.x = last,
       .gain = head.norm,
       .d_y = d_hidden,
       .residual = {},
       .d_x = d_hidden,
       .y = {},
       .d_gain = d_norm,
       .workspace = activations_.reduction_workspace(),
       .eps = eps,
       .abs_max = quantized_ == nullptr
                      ? TensorView{}
                      : quantized_->gradient_max(activations_.gradient_set(), LinearKind::down)},
      compute);
}

void Transformer::backward_embedding(const DeviceBatch& batch, TensorView d_table,
                                     Stream& compute) {
  kernels_.embedding_backward({.tokens = batch.inputs,
                               .order = batch.token_order,
                               .d_out = activations_.d_hidden(),
                               .d_table = d_table,
                               .workspace = activations_.embedding_workspace()},
                              compute);
}

void Transformer::forward_backward(const DeviceBatch& batch, const ConstTensorView& scale,
                                   TensorView losses, const ModelParams& params, GradSink& grads,
                                   Stream& compute) {
  OneBatch one(batch);
  forward_together(one, params, compute);
  backward_all(one, 0, scale, losses, params, grads, Left::kept, compute);
}

void Transformer::backward_all(MicroBatchGroup& group, Index first, const ConstTensorView& scale,
                               TensorView losses, const ModelParams& params, GradSink& grads,
                               Left left, Stream& compute) {
  const ParamUnit& embedding = layout_.unit(kEmbedding);
  const bool tied = layout_.is_tied();
  const bool trains_embedding = is_embedding_trained();
  const UnitId embedding_unit = kEmbedding;  // in either layout
  const std::optional<UnitId> head_unit = trained_head();
  documents_.resize(std::max(documents_.size(), static_cast<std::size_t>(first + group.own())));
  // Of micro-batch i, whose gradients a unit is about to get.
  const auto begin = [&](Index i) {
    if (i < group.own()) {
      activations_.use_set(first + i);
    }
    group.begins_backward(i);
  };

  // The gradient of embedding and LM head: tied, it is the embedding's from here to the end of the
  // backward pass.
  TensorView d_table;
  DeviceBatch batch;
  {
    const Head weights = head(params, compute);
    for (Index i = 0; i < group.most(); ++i) {
      begin(i);
      if (tied && trains_embedding) {
        d_table = tensor_view(embedding, "weight", grads.acquire(embedding_unit, compute));
      }
      TensorView d_weight = d_table;
      TensorView d_norm;
      if (head_unit) {
        const TensorView head_grads = grads.acquire(*head_unit, compute);
        const ParamUnit& unit = trained_layout().unit(*head_unit);
        d_weight = tied ? d_table : tensor_view(unit, "weight", head_grads);
        d_norm = adapters_ != nullptr ? d_norm : tensor_view(unit, "norm", head_grads);
      }
      if (i < group.own()) {
        batch = group.batch(i);
        documents_[static_cast<std::size_t>(first + i)] = batch.documents;
        backward_head(batch, scale, losses, weights, d_weight, d_norm, compute);
        group.has_losses(i);
      }
      if (head_unit) {
        grads.commit(*head_unit, compute);
      }
    }
  }

  enter_phase("backward");
  for (Index layer = config_.num_layers - 1; layer >= 0; --layer) {
    const UnitId unit = trained_block(layer);
    const ParamUnit& described = layout_.unit(static_cast<UnitId>(layer) + 1);
    const Recompute dropped =
        left == Left::inputs ? Recompute::block : activations_.recompute(layer);
    const CodeUse use = dropped == Recompute::none ? CodeUse::backward : CodeUse::both;
    std::optional<HeldBlock> block;
    for (Index i = 0; i < group.most(); ++i) {
      begin(i);
      const TensorView storage = grads.acquire(unit, compute);
      if (i < group.own()) {
        activations_.inputs().will_read_back(layer, compute);
      }
      if (!block) {
        block.emplace(hold(layer, quantized_, use, params, compute));
      }
      if (i < group.own()) {
        const TraceRange range({TraceCategory::compute, "backward", described.name}, compute);
        place_adapters(layer, storage, dropped, *block);
        block_.backward(
            layer, block->params(), documents_[static_cast<std::size_t>(first + i)],
            adapters_ != nullptr ? BlockTensors<TensorView>{} : block_tensors(described, storage),
            activations_.d_hidden(),
            layer > 0 || trains_embedding ? InputGradient::needed : InputGradient::unneeded,
            dropped, compute);
      }
      if (i + 1 == group.most()) {
        block.reset();
      }
      grads.commit(unit, compute);
    }
  }

  for (Index i = 0; trains_embedding && i < group.most(); ++i) {
    begin(i);
    if (!tied) {
      d_table = tensor_view(embedding, "weight", grads.acquire(embedding_unit, compute));
    }
    if (i < group.own()) {
      if (group.own() > 1) {
        batch = group.batch(i);
      }
      const TraceRange range({TraceCategory::compute, "backward", embedding.name}, compute);
      if (!tied) {
        zero_async(d_table, compute);  // rows of tokens that do not occur
      }
      backward_embedding(batch, d_table, compute);
    }
    grads.commit(embedding_unit, compute);
  }
  activations_.use_set(0);
}

void Transformer::idle_evaluation(const ModelParams& params, Stream& compute) {
  NoBatch none;
  forward_blocks(none, Keep::nothing, nullptr, params, compute);
  (void)head(params, compute);
}

void Transformer::idle_backward(const ModelParams& params, GradSink& grads, Stream& compute) {
  NoBatch none;
  backward_all(none, 0, {}, {}, params, grads, Left::kept, compute);
}

void Transformer::forward(const DeviceBatch& batch, TensorView losses, TensorView correct,
                          const ModelParams& params, Stream& compute) {
  OneBatch one(batch);
  forward_blocks(one, Keep::nothing, nullptr, params, compute);
  const Head weights = head(params, compute);
  const TraceRange range({TraceCategory::compute, "loss", layout_.unit(layout_.head()).name},
                         compute);
  const TensorView normed = activations_.normed();
  kernels_.rms_norm_forward({.x = activations_.residual(config_.num_layers),
                             .gain = weights.norm,
                             .y = normed,
                             .eps = static_cast<float>(config_.rms_norm_eps)},
                            compute);
  loss_.forward({.hidden = normed,
                 .weight = weights.weight,
                 .bias = {},
                 .targets = batch.targets,
                 .weights = {},
                 .scale = {},
                 .loss = losses,
                 .correct = correct},
                activations_.gemm_workspace(), compute);
}

}  // namespace tessera
