#include "model/decoder.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "kernels/base/error.h"
#include "model/activations.h"
#include "model/fused_linear_cross_entropy.h"
#include "model/linear.h"
#include "model/transformer_block.h"

namespace tessera {
namespace {

constexpr UnitId kEmbedding = 0;

ConstTensorView tensor_view(const ParamUnit& unit, std::string_view suffix,
                            const ConstTensorView& storage) {
  const ParamTensor& tensor = part(unit, suffix);
  return storage.slice(tensor.offset, tensor.offset + tensor.count()).reshaped(tensor.shape);
}

}  // namespace

Decoder::Decoder(const KernelTable& kernels, const ModelConfig& config, const ParamLayout& layout,
                 Index capacity, DType dtype, const DecoderWork& work, Arena& arena,
                 const AdapterLayout* adapters)
    : kernels_(kernels),
      config_(config),
      layout_(layout),
      adapters_(adapters),
      capacity_((capacity + kTile - 1) / kTile * kTile),
      work_(work) {
  TESSERA_REQUIRE(capacity >= 1, "room for a token");
  const auto device = [&](DType type, const Shape& shape, const char* name) {
    return arena.allocate(MemoryKind::device, type, shape, name);
  };
  host_tokens_ =
      arena.allocate(MemoryKind::pinned, DType::i32, {capacity_}, "generation/tokens of the host");
  const Shape table = {capacity_, config.head_dim / 2};
  cos_ = device(DType::f32, table, "generation/rotary tables");
  sin_ = device(DType::f32, table, "generation/rotary tables");
  for (Index layer = 0; layer < config.num_layers; ++layer) {
    cache_.push_back(device(dtype, {capacity_, 2 * config.num_kv_heads * config.head_dim},
                            "generation/keys and values"));
  }
  if (!arena.is_dry_run()) {
    std::fill_n(data_as<std::int32_t>(host_tokens_.view()), capacity_, 0);
    write_rotary_tables(config, cos_.view(), sin_.view(), arena.device());
  }
}

void Decoder::run_block(Index layer, Index position, const BlockTensors<ConstTensorView>& params,
                        const BlockAdapters& adapters, Stream& stream) {
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const Index half = config_.head_dim / 2;
  const auto linear = [&](LinearKind kind) {
    const auto [in, out] = linear_sizes(config_, kind);
    Linear layer_of_kind{kernels_, kTile, in, out, work_.gemm};
    layer_of_kind.adapter = adapters.of(kind).count > 0 ? &adapters.of(kind) : nullptr;
    return layer_of_kind;
  };
  kernels_.rms_norm_forward(
      {.x = work_.hidden, .gain = params.attention_norm, .y = work_.normed, .eps = eps}, stream);
  linear(LinearKind::qkv).forward(work_.normed, params.qkv, params.qkv_bias, {}, work_.qkv, stream);
  const auto rows_of = [&](const DeviceBuffer& table) {
    return table.view().slice(position * half, (position + kTile) * half).reshaped({kTile, half});
  };
  kernels_.rotary_forward(
      {.shape = {kTile, kTile, config_.num_heads, config_.num_kv_heads, config_.head_dim},
       .qkv = work_.qkv,
       .cos = rows_of(cos_),
       .sin = rows_of(sin_),
       .q_gain = params.q_norm,
       .k_gain = params.k_norm,
       .rotated_qk = {},
       .eps = eps},
      stream);
  kernels_.attention_cached(
      {.rows = kTile,
       .query_heads = config_.num_heads,
       .kv_heads = config_.num_kv_heads,
       .head_dim = config_.head_dim,
       .position = position,
       .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config_.head_dim))),
       .qkv = work_.qkv,
       .cache = cache_.at(static_cast<std::size_t>(layer)).view(),
       .out = work_.attended,
       .window = config_.window_of(layer)},
      stream);
  linear(LinearKind::out)
      .forward(work_.attended, params.out, params.out_bias, work_.hidden, work_.middle, stream);
  kernels_.rms_norm_forward(
      {.x = work_.middle, .gain = params.mlp_norm, .y = work_.normed, .eps = eps}, stream);
  linear(LinearKind::gate_up)
      .forward(work_.normed, params.gate_up, params.gate_up_bias, {}, work_.gate_up, stream);
  kernels_.swiglu_forward({.gate_up = work_.gate_up, .act = work_.product}, stream);
  linear(LinearKind::down)
      .forward(work_.product, params.down, params.down_bias, work_.middle, work_.hidden, stream);
}

ParamLease Decoder::acquire_embedding(const ModelParams& params, Stream& stream) const {
  const auto trained = adapters_ == nullptr ? std::nullopt : adapters_->embedding();
  return trained ? params.adapters->acquire(*trained, stream)
                 : params.base.acquire(kEmbedding, stream);
}

void Decoder::run_tile(Index tile, const ModelParams& params, Stream& stream) {
  const Index position = tile * kTile;
  copy_async(host_tokens_.view().slice(position, position + kTile), work_.tokens, stream);
  kernels_.embedding_forward({.tokens = work_.tokens,
                              .order = {},
                              .table = tensor_view(layout_.unit(kEmbedding), "weight",
                                                   acquire_embedding(params, stream).params()),
                              .out = work_.hidden},
                             stream);
  for (Index layer = 0; layer < config_.num_layers; ++layer) {
    const auto unit = static_cast<UnitId>(layer) + 1;
    const ParamLease base = params.base.acquire(unit, stream);
    std::optional<ParamLease> beside;
    BlockAdapters adapters;
    if (adapters_ != nullptr) {
      beside.emplace(params.adapters->acquire(adapters_->block(layer), stream));
      adapters = block_adapters(config_, *adapters_, layer, beside->params(), {},
                                {.hidden = work_.adapters, .d_hidden = {}});
    }
    run_block(layer, position, block_tensors(layout_.unit(unit), base.params()), adapters, stream);
  }
}

void Decoder::run_head(const ModelParams& params, Stream& stream) {
  const ParamUnit& unit = layout_.unit(layout_.head());
  const ParamLease head = params.base.acquire(layout_.head(), stream);
  const auto trained = adapters_ == nullptr ? std::nullopt : adapters_->head();
  std::optional<ParamLease> table;
  if (layout_.is_tied()) {
    table.emplace(acquire_embedding(params, stream));
  } else if (trained) {
    table.emplace(params.adapters->acquire(*trained, stream));
  }
  const ParamUnit& table_unit = trained             ? adapters_->params().unit(*trained)
                                : layout_.is_tied() ? layout_.unit(kEmbedding)
                                                    : unit;
  const ConstTensorView weight =
      tensor_view(table_unit, "weight", table ? table->params() : head.params());
  const Index stride = work_.logits.shape[1];
  kernels_.rms_norm_forward({.x = work_.hidden,
                             .gain = tensor_view(unit, "norm", head.params()),
                             .y = work_.normed,
                             .eps = static_cast<float>(config_.rms_norm_eps)},
                            stream);
  kernels_.gemm({.m = kTile,
                 .n = config_.vocab_size,
                 .k = config_.hidden_size,
                 .transpose_a = Transpose::no,
                 .transpose_b = Transpose::yes,
                 .a = work_.normed,
                 .lda = config_.hidden_size,
                 .b = weight,
                 .ldb = config_.hidden_size,
                 .beta = 0.0F,
                 .c = {},
                 .bias = {},
                 .d = work_.logits,
                 .ldd = stride,
                 .workspace = work_.gemm},
                stream);
  const Index row = (length_ - 1) % kTile;
  copy_async(work_.logits.slice(row * stride, row * stride + config_.vocab_size), work_.host_logits,
             stream);
}

std::span<const float> Decoder::append(std::span<const std::int32_t> tokens,
                                       const ModelParams& params, Stream& stream) {
  TESSERA_REQUIRE(!tokens.empty() && std::ssize(tokens) <= capacity_ - length_,
                  "one token or more, and room for them");
  TESSERA_REQUIRE(
      std::all_of(tokens.begin(), tokens.end(),
                  [this](std::int32_t id) { return id >= 0 && id < config_.vocab_size; }),
      "tokens of the vocabulary");
  std::copy(tokens.begin(), tokens.end(), data_as<std::int32_t>(host_tokens_.view()) + length_);
  const Index first = length_ / kTile;
  length_ += std::ssize(tokens);
  for (Index tile = first; tile <= (length_ - 1) / kTile; ++tile) {
    run_tile(tile, params, stream);
  }
  run_head(params, stream);
  stream.synchronize();
  return {data_as<float>(work_.host_logits), static_cast<std::size_t>(config_.vocab_size)};
}

}  // namespace tessera
