#include "model/transformer_block.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace tessera {
namespace {

template <typename View>
BlockTensors<View> views_of(const ParamUnit& unit, const View& storage) {
  const auto view = [&](std::string_view suffix) -> View {
    const ParamTensor& tensor = part(unit, suffix);
    return storage.slice(tensor.offset, tensor.offset + tensor.count()).reshaped(tensor.shape);
  };
  const auto optional = [&](std::string_view suffix) -> View {
    for (const ParamTensor& tensor : unit.tensors) {
      if (std::string_view(tensor.name).ends_with(suffix)) {
        return view(suffix);
      }
    }
    return {};
  };
  return {.attention_norm = view("attention.norm"),
          .qkv = view("attention.qkv"),
          .qkv_bias = optional("attention.qkv_bias"),
          .q_norm = optional("attention.q_norm"),
          .k_norm = optional("attention.k_norm"),
          .out = view("attention.out"),
          .out_bias = optional("attention.out_bias"),
          .mlp_norm = view("mlp.norm"),
          .gate_up = view("mlp.gate_up"),
          .gate_up_bias = optional("mlp.gate_up_bias"),
          .down = view("mlp.down"),
          .down_bias = optional("mlp.down_bias")};
}

}  // namespace

BlockTensors<ConstTensorView> block_tensors(const ParamUnit& unit, const ConstTensorView& storage) {
  return views_of(unit, storage);
}

BlockTensors<TensorView> block_tensors(const ParamUnit& unit, const TensorView& storage) {
  return views_of(unit, storage);
}

TransformerBlock::TransformerBlock(const KernelTable& kernels, const ModelConfig& config,
                                   const BatchShape& batch, const AttentionOptions& attention,
                                   Activations& activations)
    : kernels_(kernels),
      config_(config),
      batch_(batch),
      attention_(attention),
      activations_(activations) {}

namespace {

// A window as long as the sequence hides nothing.
AttentionShape attention_shape(const ModelConfig& config, const BatchShape& batch, Index window) {
  return {.batch = batch.sequences,
          .sequence = batch.length,
          .query_heads = config.num_heads,
          .kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .window = window < batch.length ? window : 0};
}

RotaryShape rotary_shape(const ModelConfig& config, const BatchShape& batch) {
  return {batch.tokens(), batch.length, config.num_heads, config.num_kv_heads, config.head_dim};
}

TensorView gradient_max(const BlockParams& params, Index set, LinearKind kind) {
  return params.quantized == nullptr ? TensorView{} : params.quantized->gradient_max(set, kind);
}

float attention_scale(const ModelConfig& config) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(config.head_dim)));
}

}  // namespace

Linear TransformerBlock::linear(Index layer, const BlockParams& params, LinearKind kind) const {
  const auto [in, out] = linear_sizes(config_, kind);
  Linear linear{kernels_, batch_.tokens(), in, out, activations_.gemm_workspace()};
  if (params.adapters != nullptr && params.adapters->of(kind).count > 0) {
    linear.adapter = &params.adapters->of(kind);
  }
  if (params.quantized != nullptr) {
    QuantizedBlocks& blocks = *params.quantized;
    // Attention and its backward pass do not look for maxima; a block that is not quantised does
    // not tell that of its input's gradient, which is the gradient of the block before.
    const bool is_next_quantized = layer + 1 == config_.num_layers || blocks.has(layer + 1);
    const bool is_gradient_known =
        kind == LinearKind::down ? is_next_quantized : kind != LinearKind::qkv;
    linear.quantized = {.blocks = &blocks,
                        .kind = kind,
                        .weight = blocks.weight(layer, kind),
                        .input_max = blocks.input_max(activations_.inputs().set(), layer, kind),
                        .gradient_max = blocks.gradient_max(activations_.gradient_set(), kind),
                        .input = kind == LinearKind::out ? Maximum::unknown : Maximum::known,
                        .gradient = is_gradient_known ? Maximum::known : Maximum::unknown};
  }
  return linear;
}

AttentionForwardArgs TransformerBlock::attention_args(Index layer,
                                                      const BlockActivations& a) const {
  return {.shape = attention_shape(config_, batch_, config_.window_of(layer)),
          .options = attention_,
          .scale = attention_scale(config_),
          .qkv = a.qkv,
          .rotated_qk = a.rotated_qk,
          .out = a.attended,
          .lse = a.lse,
          .workspace = activations_.attention_workspace()};
}

AttentionBackwardArgs TransformerBlock::attention_backward_args(Index layer,
                                                                const BlockActivations& a) const {
  return {.shape = attention_shape(config_, batch_, config_.window_of(layer)),
          .options = attention_,
          .scale = attention_scale(config_),
          .qkv = a.qkv,
          .rotated_qk = a.rotated_qk,
          .out = a.attended,
          .lse = a.lse,
          .d_out = activations_.d_attended(),
          .d_qkv = activations_.d_qkv(),
          .workspace = activations_.attention_workspace()};
}

void TransformerBlock::prepare(Index layer, Stream& stream) {
  const BlockActivations a = activations_.block(layer);
  prepare_attention(attention_args(layer, a), attention_backward_args(layer, a), stream);
}

void TransformerBlock::forward_attention(Index layer, const BlockActivations& a,
                                         const BlockParams& params, const DocumentBounds& documents,
                                         Stream& stream) {
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const TensorView normed = activations_.normed();
  const Linear qkv = linear(layer, params, LinearKind::qkv);
  kernels_.rms_norm_forward({.x = a.residual,
                             .gain = params.attention_norm,
                             .y = normed,
                             .eps = eps,
                             .abs_max = qkv.quantized.input_max},
                            stream);
  qkv.forward(normed, params.qkv, params.qkv_bias, {}, a.qkv, stream);
  kernels_.rotary_forward({.shape = rotary_shape(config_, batch_),
                           .qkv = a.qkv,
                           .cos = activations_.cos(),
                           .sin = activations_.sin(),
                           .q_gain = params.q_norm,
                           .k_gain = params.k_norm,
                           .rotated_qk = a.rotated_qk,
                           .eps = eps,
                           .positions = documents.positions},
                          stream);
  AttentionForwardArgs attention = attention_args(layer, a);
  attention.documents = documents;
  kernels_.attention_forward(attention, stream);
}

void TransformerBlock::forward_middle(Index layer, const BlockActivations& a,
                                      const BlockParams& params, Stream& stream) {
  linear(layer, params, LinearKind::out)
      .forward(a.attended, params.out, params.out_bias, a.residual, a.middle, stream);
}

void TransformerBlock::forward_gate_up(Index layer, const BlockActivations& a,
                                       const BlockParams& params, Stream& stream) {
  const TensorView normed = activations_.normed();
  const Linear gate_up = linear(layer, params, LinearKind::gate_up);
  kernels_.rms_norm_forward({.x = a.middle,
                             .gain = params.mlp_norm,
                             .y = normed,
                             .eps = static_cast<float>(config_.rms_norm_eps),
                             .abs_max = gate_up.quantized.input_max},
                            stream);
  gate_up.forward(normed, params.gate_up, params.gate_up_bias, {}, a.gate_up, stream);
}

void TransformerBlock::forward(Index layer, const BlockParams& params,
                               const DocumentBounds& documents, Stream& stream) {
  const BlockActivations a = activations_.block(layer);
  forward_attention(layer, a, params, documents, stream);
  forward_middle(layer, a, params, stream);
  forward_gate_up(layer, a, params, stream);
  const TensorView product = activations_.product();
  const Linear down = linear(layer, params, LinearKind::down);
  kernels_.swiglu_forward(
      {.gate_up = a.gate_up, .act = product, .abs_max = down.quantized.input_max}, stream);
  down.forward(product, params.down, params.down_bias, a.middle, a.output, stream);
}

void TransformerBlock::backward_bias(const ConstTensorView& d_y, const TensorView& grad,
                                     Stream& stream) {
  if (grad.data != nullptr) {
    kernels_.column_sum({.x = d_y, .out = grad, .workspace = activations_.reduction_workspace()},
                        stream);
  }
}

namespace {

// Whether the gradient of the input of layer `kind` is needed: of the block's, or by an adapter in front of
// it.
bool needs_gradient_before(LinearKind kind, const BlockParams& params, InputGradient input) {
  if (input == InputGradient::needed) {
    return true;
  }
  const auto end = kLinearLayers.begin() + static_cast<std::ptrdiff_t>(kind);
  return params.adapters != nullptr &&
         std::any_of(kLinearLayers.begin(), end,
                     [&](LinearKind before) { return params.adapters->of(before).count > 0; });
}

}  // namespace

void TransformerBlock::backward_behind_norm(const Linear& linear, const ConstTensorView& d_y,
                                            const ConstTensorView& x, const ConstTensorView& gain,
                                            Stream& stream) {
  const TensorView normed = activations_.normed();
  linear.backward_input(d_y, {}, {}, stream);
  kernels_.rms_norm_forward(
      {.x = x, .gain = gain, .y = normed, .eps = static_cast<float>(config_.rms_norm_eps)}, stream);
  linear.backward_weight(d_y, normed, {}, stream);
}

bool TransformerBlock::backward_mlp(Index layer, const BlockActivations& a,
                                    const BlockParams& params,
                                    const BlockTensors<TensorView>& grads, TensorView d_hidden,
                                    InputGradient input, Stream& stream) {
  const TensorView product = activations_.product();
  const TensorView normed = activations_.normed();
  const Linear down = linear(layer, params, LinearKind::down);
  const Linear gate_up = linear(layer, params, LinearKind::gate_up);
  if (!needs_gradient_before(LinearKind::down, params, input)) {
    down.backward_input(d_hidden, {}, {}, stream);
    kernels_.swiglu_forward({.gate_up = a.gate_up, .act = product}, stream);
    down.backward_weight(d_hidden, product, {}, stream);
    return false;
  }
  down.backward_input(d_hidden, params.down, product, stream);
  // gate_up becomes its own gradient, and d(product) becomes the product again
  kernels_.swiglu_backward({.gate_up = a.gate_up,
                            .d_act = product,
                            .d_gate_up = a.gate_up,
                            .act = product,
                            .abs_max = gate_up.quantized.gradient_max},
                           stream);
  down.backward_weight(d_hidden, product, grads.down, stream);
  backward_bias(d_hidden, grads.down_bias, stream);
  backward_bias(a.gate_up, grads.gate_up_bias, stream);
  if (!needs_gradient_before(LinearKind::gate_up, params, input)) {
    backward_behind_norm(gate_up, a.gate_up, a.middle, params.mlp_norm, stream);
    return false;
  }
  gate_up.backward_input(a.gate_up, params.gate_up, normed, stream);
  kernels_.rms_norm_backward(
      {.x = a.middle,
       .gain = params.mlp_norm,
       .d_y = normed,
       .residual = d_hidden,
       .d_x = d_hidden,
       .y = normed,
       .d_gain = grads.mlp_norm,
       .workspace = activations_.reduction_workspace(),
       .eps = static_cast<float>(config_.rms_norm_eps),
       .abs_max = gradient_max(params, activations_.gradient_set(), LinearKind::out)},
      stream);
  gate_up.backward_weight(a.gate_up, normed, grads.gate_up, stream);
  return true;
}

void TransformerBlock::backward_attention(Index layer, const BlockActivations& a,
                                          const BlockParams& params,
                                          const DocumentBounds& documents,
                                          const BlockTensors<TensorView>& grads,
                                          TensorView d_hidden, InputGradient input,
                                          Stream& stream) {
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const TensorView d_attended = activations_.d_attended();
  const TensorView d_qkv = activations_.d_qkv();
  const TensorView normed = activations_.normed();
  const Linear out = linear(layer, params, LinearKind::out);
  const Linear qkv = linear(layer, params, LinearKind::qkv);
  const bool ends = !needs_gradient_before(LinearKind::out, params, input);
  out.backward_input(d_hidden, params.out, ends ? TensorView{} : d_attended, stream);
  out.backward_weight(d_hidden, a.attended, grads.out, stream);
  if (ends) {
    return;
  }
  backward_bias(d_hidden, grads.out_bias, stream);
  AttentionBackwardArgs attention = attention_backward_args(layer, a);
  attention.documents = documents;
  kernels_.attention_backward(attention, stream);
  kernels_.rotary_backward({.shape = rotary_shape(config_, batch_),
                            .d_qkv = d_qkv,
                            .cos = activations_.cos(),
                            .sin = activations_.sin(),
                            .q_gain = params.q_norm,
                            .k_gain = params.k_norm,
                            .qkv = a.qkv,
                            .d_q_gain = grads.q_norm,
                            .d_k_gain = grads.k_norm,
                            .workspace = activations_.reduction_workspace(),
                            .eps = eps,
                            .positions = documents.positions},
                           stream);
  backward_bias(d_qkv, grads.qkv_bias, stream);
  if (!needs_gradient_before(LinearKind::qkv, params, input)) {
    backward_behind_norm(qkv, d_qkv, a.residual, params.attention_norm, stream);
    return;
  }
  qkv.backward_input(d_qkv, params.qkv, normed, stream);
  kernels_.rms_norm_backward(
      {.x = a.residual,
       .gain = params.attention_norm,
       .d_y = normed,
       .residual = d_hidden,
       .d_x = d_hidden,
       .y = normed,
       .d_gain = grads.attention_norm,
       .workspace = activations_.reduction_workspace(),
       .eps = eps,
       .abs_max = gradient_max(params, activations_.gradient_set(), LinearKind::down)},
      stream);
  qkv.backward_weight(d_qkv, normed, grads.qkv, stream);
}

void TransformerBlock::backward(Index layer, const BlockParams& params,
                                const DocumentBounds& documents,
                                const BlockTensors<TensorView>& grads, TensorView d_hidden,
                                InputGradient input, Recompute dropped, Stream& stream) {
  const BlockActivations a = activations_.block(layer);
  if (drops_attention(dropped)) {
    forward_attention(layer, a, params, documents, stream);
  }
  if (drops_middle(dropped)) {
    forward_middle(layer, a, params, stream);
  }
  if (drops_mlp(dropped)) {
    forward_gate_up(layer, a, params, stream);
  }
  if (backward_mlp(layer, a, params, grads, d_hidden, input, stream)) {
    backward_attention(layer, a, params, documents, grads, d_hidden, input, stream);
  }
}

}  // namespace tessera
