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
                 const AdapterLayout* adapters, Index texts)
    : kernels_(kernels),
      config_(config),
      layout_(layout),
      adapters_(adapters),
      capacity_((capacity + kTile - 1) / kTile * kTile),
      work_(work) {
  TESSERA_REQUIRE(capacity >= 1 && texts >= 1, "room for a token of a text");
  const Shape table = {capacity_, config.head_dim / 2};
  cos_ = arena.allocate(MemoryKind::device, DType::f32, table, "generation/rotary tables");
  sin_ = arena.allocate(MemoryKind::device, DType::f32, table, "generation/rotary tables");
  texts_.reserve(static_cast<std::size_t>(texts));
  for (Index text = 0; text < texts; ++text) {
    texts_.push_back(make_text(dtype, text == 0, arena));
  }
  parts_.reserve(texts_.size());
  longer_.reserve(texts_.size());
  if (!arena.is_dry_run()) {
    write_rotary_tables(config, cos_.view(), sin_.view(), arena.device());
  }
}

Decoder::Text Decoder::make_text(DType dtype, bool is_first, Arena& arena) const {
  Text text;
  text.host_tokens =
      arena.allocate(MemoryKind::pinned, DType::i32, {capacity_}, "generation/tokens of the host");
  for (Index layer = 0; layer < config_.num_layers; ++layer) {
    text.cache.push_back(arena.allocate(MemoryKind::device, dtype,
                                        {capacity_, 2 * config_.num_kv_heads * config_.head_dim},
                                        "generation/keys and values"));
  }
  text.hidden = work_.hidden;
  text.host_logits = work_.host_logits;
  if (!is_first) {
    text.storage.push_back(arena.allocate(MemoryKind::device, dtype, {kTile, config_.hidden_size},
                                          "generation/rows of a tile"));
    text.hidden = text.storage.back().view();
    text.storage.push_back(arena.allocate(MemoryKind::pinned, DType::f32, {config_.vocab_size},
                                          "generation/logits of the host"));
    text.host_logits = text.storage.back().view();
  }
  if (!arena.is_dry_run()) {
    std::fill_n(data_as<std::int32_t>(text.host_tokens.view()), capacity_, 0);
  }
  return text;
}

void Decoder::forget() noexcept {
  for (Text& text : texts_) {
    text.length = 0;
  }
}

std::span<const float> Decoder::logits(Index text) const {
  return {data_as<float>(of(text).host_logits), static_cast<std::size_t>(config_.vocab_size)};
}

void Decoder::run_block(const Part& part, Index layer, const BlockTensors<ConstTensorView>& params,
                        const BlockAdapters& adapters, Stream& stream) {
  const TensorView& hidden = part.text->hidden;
  const Index position = part.tile * kTile;
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const Index half = config_.head_dim / 2;
  const auto linear = [&](LinearKind kind) {
    const auto [in, out] = linear_sizes(config_, kind);
    Linear layer_of_kind{kernels_, kTile, in, out, work_.gemm};
    layer_of_kind.adapter = adapters.of(kind).count > 0 ? &adapters.of(kind) : nullptr;
    return layer_of_kind;
  };
  kernels_.rms_norm_forward(
      {.x = hidden, .gain = params.attention_norm, .y = work_.normed, .eps = eps}, stream);
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
       .cache = part.text->cache.at(static_cast<std::size_t>(layer)).view(),
       .out = work_.attended,
       .window = config_.window_of(layer)},
      stream);
  linear(LinearKind::out)
      .forward(work_.attended, params.out, params.out_bias, hidden, work_.middle, stream);
  kernels_.rms_norm_forward(
      {.x = work_.middle, .gain = params.mlp_norm, .y = work_.normed, .eps = eps}, stream);
  linear(LinearKind::gate_up)
      .forward(work_.normed, params.gate_up, params.gate_up_bias, {}, work_.gate_up, stream);
  kernels_.swiglu_forward({.gate_up = work_.gate_up, .act = work_.product}, stream);
  linear(LinearKind::down)
      .forward(work_.product, params.down, params.down_bias, work_.middle, hidden, stream);
}

ParamLease Decoder::acquire_embedding(const ModelParams& params, Stream& stream) const {
  const auto trained = adapters_ == nullptr ? std::nullopt : adapters_->embedding();
  return trained ? params.adapters->acquire(*trained, stream)
                 : params.base.acquire(kEmbedding, stream);
}

void Decoder::run_pass(std::span<const Part> parts, const ModelParams& params, Stream& stream) {
  {
    const ParamLease embedding = acquire_embedding(params, stream);
    for (const Part& part : parts) {
      const Index position = part.tile * kTile;
      copy_async(part.text->host_tokens.view().slice(position, position + kTile), work_.tokens,
                 stream);
      kernels_.embedding_forward(
          {.tokens = work_.tokens,
           .order = {},
           .table = tensor_view(layout_.unit(kEmbedding), "weight", embedding.params()),
           .out = part.text->hidden},
          stream);
    }
  }
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
    const BlockTensors<ConstTensorView> tensors = block_tensors(layout_.unit(unit), base.params());
    for (const Part& part : parts) {
      run_block(part, layer, tensors, adapters, stream);
    }
  }
}

void Decoder::run_head(std::span<const Part> last, const ModelParams& params, Stream& stream) {
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
  for (const Part& part : last) {
    const Text* text = part.text;
    kernels_.rms_norm_forward({.x = text->hidden,
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
    const Index row = (text->length - 1) % kTile;
    copy_async(work_.logits.slice(row * stride, row * stride + config_.vocab_size),
               text->host_logits, stream);
  }
}

void Decoder::take(Text& text, std::span<const std::int32_t> tokens) const {
  TESSERA_REQUIRE(std::ssize(tokens) <= capacity_ - text.length, "room for the tokens");
  TESSERA_REQUIRE(
      std::all_of(tokens.begin(), tokens.end(),
                  [this](std::int32_t id) { return id >= 0 && id < config_.vocab_size; }),
      "tokens of the vocabulary");
  std::copy(tokens.begin(), tokens.end(),
            data_as<std::int32_t>(text.host_tokens.view()) + text.length);
  text.length += std::ssize(tokens);
}

void Decoder::append(std::span<const std::span<const std::int32_t>> tokens,
                     const ModelParams& params, Stream& stream) {
  TESSERA_REQUIRE(tokens.size() == texts_.size(), "tokens, or none, for each text");
  longer_.clear();
  Index passes = 0;
  const auto last_tile = [](const Text& text) { return (text.length - 1) / kTile; };
  for (std::size_t i = 0; i < texts_.size(); ++i) {
    if (!tokens[i].empty()) {
      longer_.push_back({&texts_[i], texts_[i].length / kTile});
      take(texts_[i], tokens[i]);
      passes = std::max(passes, last_tile(texts_[i]) - longer_.back().tile + 1);
    }
  }
  TESSERA_REQUIRE(!longer_.empty(), "one token or more");
  for (Index pass = 0; pass < passes; ++pass) {
    parts_.clear();
    for (const auto& [text, first] : longer_) {
      if (first + pass <= last_tile(*text)) {
        parts_.push_back({text, first + pass});
      }
    }
    run_pass(parts_, params, stream);
  }
  run_head(longer_, params, stream);
  stream.synchronize();
}

std::span<const float> Decoder::append(std::span<const std::int32_t> tokens,
                                       const ModelParams& params, Stream& stream) {
  TESSERA_REQUIRE(texts() == 1, "one text");
  append(std::span(&tokens, 1), params, stream);
  return logits(0);
}

}  // namespace tessera
