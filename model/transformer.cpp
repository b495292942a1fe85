#include "model/transformer.h"

#include "kernels/base/progress.h"
#include "kernels/base/trace.h"

namespace tessera {
namespace {

constexpr UnitId kEmbedding = 0;

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
                         const AdapterLayout* adapters, const AdapterWork& work)
    : kernels_(kernels),
      config_(config),
      layout_(layout),
      activations_(activations),
      loss_(loss),
      quantized_(quantized),
      adapters_(adapters),
      work_(work),
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

void Transformer::forward_together(Index count, const std::function<DeviceBatch(Index)>& batch_of,
                                   const ModelParams& params, Stream& compute) {
  forward_blocks(count, batch_of, Keep::inputs, quantized_, params, compute);
}

ParamLease Transformer::acquire_embedding(const ModelParams& params, Stream& compute) const {
  return is_embedding_trained() && adapters_ != nullptr
             ? params.adapters->acquire(*adapters_->embedding(), compute)
             : params.base.acquire(kEmbedding, compute);
}

Transformer::BlockInUse Transformer::acquire_block(Index layer, const ModelParams& params,
                                                   const TensorView& grads, Stream& compute) const {
  BlockInUse block = {params.base.acquire(static_cast<UnitId>(layer) + 1, compute), {}, {}};
  if (adapters_ != nullptr) {
    block.of_adapters.emplace(params.adapters->acquire(adapters_->block(layer), compute));
    block.adapters =
        block_adapters(config_, *adapters_, layer, block.of_adapters->params(), grads, work_);
  }
  return block;
}

BlockParams Transformer::block_params(Index layer, const BlockInUse& block,
                                      QuantizedBlocks* quantized, Stream& compute) const {
  const ParamUnit& unit = layout_.unit(static_cast<UnitId>(layer) + 1);
  const ParamLease& lease = block.lease;
  const auto tensors = block_tensors(unit, lease.params());
  if (block.of_adapters) {
    return {tensors, nullptr, &block.adapters};
  }
  if (quantized == nullptr || !quantized->has(layer)) {
    return tensors;
  }
  quantized->refresh(layer, {tensors.qkv, tensors.out, tensors.gate_up, tensors.down},
                     lease.version(), compute);
  return {tensors, quantized};
}

void Transformer::forward_blocks(Index count, const std::function<DeviceBatch(Index)>& batch_of,
                                 Keep keep, QuantizedBlocks* quantized, const ModelParams& params,
                                 Stream& compute) {
  enter_phase("forward");
  documents_.resize(static_cast<std::size_t>(count));
  {
    const ParamLease embedding = acquire_embedding(params, compute);
    for (Index set = 0; set < count; ++set) {
      activations_.use_residuals(set);
      const DeviceBatch batch = batch_of(set);
      const TraceRange range({TraceCategory::compute, "forward", layout_.unit(kEmbedding).name},
                             compute);
      embed(batch, embedding.params(), keep, compute);
      documents_[static_cast<std::size_t>(set)] = batch.documents;
    }
  }
  for (Index layer = 0; layer < config_.num_layers; ++layer) {
    const ParamUnit& unit = layout_.unit(static_cast<UnitId>(layer) + 1);
    const BlockInUse block = acquire_block(layer, params, {}, compute);
    const TraceRange range({TraceCategory::compute, "forward", unit.name}, compute);
    if (count == 0) {
      continue;
    }
    const BlockParams tensors = block_params(layer, block, quantized, compute);
    for (Index set = 0; set < count; ++set) {
      activations_.use_residuals(set);
      activations_.inputs().will_write(layer + 1, compute);
      block_.forward(layer, tensors, documents_[static_cast<std::size_t>(set)], compute);
      activations_.inputs().written(layer + 1, keep, compute);
    }
  }
  activations_.use_residuals(0);
}

void Transformer::idle_forward(const ModelParams& params, Stream& compute) {
  forward_blocks(0, {}, Keep::nothing, nullptr, params, compute);
}

void Transformer::backward_of(Index set, const DeviceBatch& batch, const ConstTensorView& scale,
                              TensorView losses, const ModelParams& params, GradSink& grads,
                              Stream& compute) {
  activations_.use_residuals(set);
  backward_all(batch, scale, losses, params, grads, Left::inputs, compute);
  activations_.use_residuals(0);
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
       .abs_max =
           quantized_ == nullptr ? TensorView{} : quantized_->gradient_max(LinearKind::down)},
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
  forward_together(
      1, [&batch](Index) { return batch; }, params, compute);
  backward_all(batch, scale, losses, params, grads, Left::kept, compute);
}

void Transformer::backward_all(const DeviceBatch& batch, const ConstTensorView& scale,
                               TensorView losses, const ModelParams& params, GradSink& grads,
                               Left left, Stream& compute) {
  const ParamUnit& embedding = layout_.unit(kEmbedding);
  const bool tied = layout_.is_tied();
  const bool trains_embedding = is_embedding_trained();
  const UnitId embedding_unit = kEmbedding;  // in either layout
  const std::optional<UnitId> head_unit = trained_head();

  // The gradient of embedding and LM head: tied, it is the embedding's from here to the end of the
  // backward pass.
  TensorView d_table;
  {
    const Head weights = head(params, compute);
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
    backward_head(batch, scale, losses, weights, d_weight, d_norm, compute);
  }
  if (head_unit) {
    grads.commit(*head_unit, compute);
  }

  enter_phase("backward");
  for (Index layer = config_.num_layers - 1; layer >= 0; --layer) {
    const UnitId unit = trained_block(layer);
    const ParamUnit& block = layout_.unit(static_cast<UnitId>(layer) + 1);
    const TensorView storage = grads.acquire(unit, compute);
    const Recompute dropped =
        left == Left::inputs ? Recompute::block : activations_.recompute(layer);
    activations_.inputs().will_read_back(layer, compute);
    {
      const BlockInUse in_use = acquire_block(layer, params, storage, compute);
      const TraceRange range({TraceCategory::compute, "backward", block.name}, compute);
      block_.backward(
          layer, block_params(layer, in_use, quantized_, compute), batch.documents,
          adapters_ != nullptr ? BlockTensors<TensorView>{} : block_tensors(block, storage),
          activations_.d_hidden(), dropped, compute);
    }
    grads.commit(unit, compute);
  }

  if (!trains_embedding) {
    return;
  }
  if (!tied) {
    d_table = tensor_view(embedding, "weight", grads.acquire(embedding_unit, compute));
  }
  {
    const TraceRange range({TraceCategory::compute, "backward", embedding.name}, compute);
    if (!tied) {
      zero_async(d_table, compute);  // rows of tokens that do not occur
    }
    backward_embedding(batch, d_table, compute);
  }
  grads.commit(embedding_unit, compute);
}

void Transformer::idle_evaluation(const ModelParams& params, Stream& compute) {
  idle_forward(params, compute);
  (void)head(params, compute);
}

void Transformer::idle_backward(const ModelParams& params, GradSink& grads, Stream& compute) {
  const auto pass_through = [&](UnitId unit) {
    (void)grads.acquire(unit, compute);
    grads.commit(unit, compute);
  };
  (void)head(params, compute);
  if (const std::optional<UnitId> unit = trained_head()) {
    pass_through(*unit);
  }
  for (Index layer = config_.num_layers - 1; layer >= 0; --layer) {
    const UnitId unit = trained_block(layer);
    (void)acquire_block(layer, params, grads.acquire(unit, compute), compute);
    grads.commit(unit, compute);
  }
  if (is_embedding_trained()) {
    pass_through(kEmbedding);
  }
}

void Transformer::forward(const DeviceBatch& batch, TensorView losses, TensorView correct,
                          const ModelParams& params, Stream& compute) {
  forward_blocks(
      1, [&batch](Index) { return batch; }, Keep::nothing, nullptr, params, compute);
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
