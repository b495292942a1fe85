#include "model/activations.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "kernels/base/error.h"
#include "kernels/embedding.h"
#include "kernels/gemm.h"
#include "kernels/reduction.h"
#include "kernels/rotary.h"

namespace tessera {
namespace {

class Allocator {
 public:
  Allocator(Arena& arena, DType dtype) : arena_(arena), dtype_(dtype) {}

  DeviceBuffer one(const Shape& shape, const std::string& name) {
    return typed(dtype_, shape, name);
  }
  DeviceBuffer typed(DType dtype, const Shape& shape, const std::string& name) {
    return arena_.allocate(MemoryKind::device, dtype, shape, name);
  }
  // One for each number of `of_layer`, which ascend from 0.
  std::vector<DeviceBuffer> many(const std::vector<std::size_t>& of_layer, DType dtype,
                                 const Shape& shape, const std::string& name) {
    std::vector<DeviceBuffer> buffers;
    buffers.reserve(of_layer.back() + 1);
    for (std::size_t i = 0; i <= of_layer.back(); ++i) {
      buffers.push_back(typed(dtype, shape, "activations/" + name));
    }
    return buffers;
  }

 private:
  Arena& arena_;
  DType dtype_;
};

// Which copy each layer writes, where those that `drops` names have that of the next one.
std::vector<std::size_t> copies_of(const RecomputeLevels& levels, Index layers,
                                   bool (*drops)(Recompute) noexcept) {
  std::vector<std::size_t> of_layer;
  std::size_t copy = 0;
  for (Index layer = 0; layer < layers; ++layer) {
    of_layer.push_back(copy);
    copy += drops(levels.of(layer)) ? 0 : 1;
  }
  return of_layer;
}

}  // namespace

void write_rotary_tables(const ModelConfig& config, TensorView cos_table, TensorView sin_table,
                         Device device) {
  const Index half = config.head_dim / 2;
  const Index length = cos_table.shape[0];
  const RotaryFrequencies frequencies = rotary_frequencies(
      config.rope, config.rope_theta, config.head_dim, config.max_position, length);
  const auto scale = static_cast<float>(frequencies.scale);
  std::vector<float> cos(static_cast<std::size_t>(length * half));
  std::vector<float> sin(cos.size());
  for (Index t = 0; t < length; ++t) {
    for (Index i = 0; i < half; ++i) {
      // transformers forms the angle in f32; it is what a checkpoint from there was trained with
      const float angle = static_cast<float>(t) *
                          static_cast<float>(frequencies.radians[static_cast<std::size_t>(i)]);
      cos[static_cast<std::size_t>(t * half + i)] = scale * std::cos(angle);
      sin[static_cast<std::size_t>(t * half + i)] = scale * std::sin(angle);
    }
  }
  Stream stream(device, StreamPriority::normal, "tables");
  const Shape table = {length, half};
  copy_async({cos.data(), DType::f32, table, Device{}}, cos_table, stream);
  copy_async({sin.data(), DType::f32, table, Device{}}, sin_table, stream);
  stream.synchronize();
}

Activations::Activations(const ModelConfig& config, const BatchShape& batch, DType dtype,
                         const RecomputeLevels& recompute, const ActivationSets& sets,
                         InputPlacement placement, const AttentionOptions& attention, Arena& arena,
                         Index adapter_width)
    : recompute_(recompute),
      layers_(config.num_layers),
      inputs_(config.num_layers, dtype, {batch.tokens(), config.hidden_size}, sets.inputs,
              placement, arena) {
  const Index tokens = batch.tokens();
  const Index width = config.hidden_size;
  const Index half = config.head_dim / 2;
  const Index qk_width = (config.num_heads + config.num_kv_heads) * config.head_dim;
  TESSERA_REQUIRE(layers_ >= 1, "a model has layers");
  Allocator memory(arena, dtype);
  const auto copies = [&](bool (*drops)(Recompute) noexcept, DType type, const Shape& shape,
                          const char* name) -> Copies {
    const std::vector<std::size_t> of_layer = copies_of(recompute, layers_, drops);
    return {of_layer, memory.many(of_layer, type, shape, name)};
  };

  qkv_ = copies(drops_attention, dtype, {tokens, config.qkv_width()}, "qkv");
  rotated_qk_ =
      copies(drops_attention, dtype, {tokens, config.qk_norm ? qk_width : 0}, "rotated qk");
  attended_ = copies(drops_attention, dtype, {tokens, config.query_width()}, "attended");
  lse_ = copies(drops_attention, DType::f32, {batch.sequences, config.num_heads, batch.length},
                "attention lse");
  middle_ = copies(drops_middle, dtype, {tokens, width}, "middle");
  gate_up_ = copies(drops_mlp, dtype, {tokens, 2 * config.intermediate_size}, "gate up");
  adapters_ = copies(drops_adapters, dtype, {tokens, adapter_width}, "adapters");

  normed_ = memory.one({tokens, width}, "activations/passing");
  product_ = memory.one({tokens, config.intermediate_size}, "activations/passing");
  d_attended_ = memory.one({tokens, config.query_width()}, "activations/passing");
  d_qkv_ = memory.one({tokens, config.qkv_width()}, "activations/passing");
  d_hidden_ = memory.one({sets.gradients, tokens, width}, "activations/passing");

  const AttentionShape attention_shape = {batch.sequences, batch.length, config.num_heads,
                                          config.num_kv_heads, config.head_dim};
  const RotaryShape rotary_shape = {tokens, batch.length, config.num_heads, config.num_kv_heads,
                                    config.head_dim};
  const DeviceKind kind = arena.device().kind;
  const Index reduction =
      std::max({column_sum_workspace(tokens, width),
                config.attention_bias ? column_sum_workspace(tokens, config.qkv_width()) : 0,
                config.mlp_bias ? column_sum_workspace(tokens, 2 * config.intermediate_size) : 0,
                rotary_workspace(rotary_shape)});
  reduction_ = memory.typed(DType::f32, {reduction}, "workspaces/reduction");
  const auto bytes = [](std::size_t count) { return Shape{static_cast<Index>(count)}; };
  attention_ = memory.typed(
      DType::u8, bytes(attention_workspace_bytes(kind, attention_shape, dtype, attention)),
      "workspaces/attention");
  embedding_ = memory.typed(DType::u8, bytes(embedding_workspace_bytes(tokens, width)),
                            "workspaces/embedding");
  gemm_ = memory.typed(DType::u8, bytes(gemm_workspace_bytes(kind)), "workspaces/gemm");

  cos_ = memory.typed(DType::f32, {batch.length, half}, "tables/rotary");
  sin_ = memory.typed(DType::f32, {batch.length, half}, "tables/rotary");
  if (arena.is_dry_run()) {
    return;
  }
  write_rotary_tables(config, cos_.view(), sin_.view(), arena.device());
}

void Activations::use_set(Index set) {
  inputs_.use(set);
  gradient_set_ = std::min(set, d_hidden_.view().shape[0] - 1);
}

TensorView Activations::d_hidden() {
  const TensorView all = d_hidden_.view();
  const Index elements = all.shape[1] * all.shape[2];
  return all.slice(gradient_set_ * elements, (gradient_set_ + 1) * elements)
      .reshaped({all.shape[1], all.shape[2]});
}

TensorView Activations::residual(Index layer) {
  return inputs_.view(layer);
}

BlockActivations Activations::block(Index layer) {
  return {.residual = residual(layer),
          .qkv = qkv_.view(layer),
          .rotated_qk = rotated_qk_.view(layer),
          .attended = attended_.view(layer),
          .lse = lse_.view(layer),
          .middle = middle_.view(layer),
          .gate_up = gate_up_.view(layer),
          .adapters = adapters_.view(layer),
          .output = residual(layer + 1)};
}

}  // namespace tessera
