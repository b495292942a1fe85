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

constexpr struct {
  std::string_view word;
  Recompute level;
} kRecomputeWords[] = {{"none", Recompute::none},
                       {"attention", Recompute::attention},
                       {"mlp", Recompute::mlp},
                       {"block", Recompute::block}};

class Allocator {
 public:
  Allocator(Arena& arena, DType dtype) : arena_(arena), dtype_(dtype) {}

  DeviceBuffer one(const Shape& shape, const std::string& name) {
    return typed(dtype_, shape, name);
  }
  DeviceBuffer typed(DType dtype, const Shape& shape, const std::string& name) {
    return arena_.allocate(MemoryKind::device, dtype, shape, name);
  }
  std::vector<DeviceBuffer> many(Index copies, DType dtype, const Shape& shape,
                                 const std::string& name) {
    std::vector<DeviceBuffer> buffers;
    buffers.reserve(static_cast<std::size_t>(copies));
    for (Index i = 0; i < copies; ++i) {
      buffers.push_back(typed(dtype, shape, "activations/" + name));
    }
    return buffers;
  }

 private:
  Arena& arena_;
  DType dtype_;
};

TensorView pick(std::vector<DeviceBuffer>& buffers, Index layer) {
  return buffers[buffers.size() == 1 ? 0 : static_cast<std::size_t>(layer)].view();
}

}  // namespace

Recompute parse_recompute(std::string_view word) {
  for (const auto& each : kRecomputeWords) {
    if (each.word == word) {
      return each.level;
    }
  }
  throw ConfigError("--recompute '" + std::string(word) + "': choose none, attention, mlp or block",
                    TESSERA_HERE);
}

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
                         Recompute recompute, Index residual_sets, InputPlacement placement,
                         const AttentionOptions& attention, Arena& arena)
    : recompute_(recompute),
      inputs_(config.num_layers, dtype, {batch.tokens(), config.hidden_size}, residual_sets,
              placement, arena) {
  const Index tokens = batch.tokens();
  const Index width = config.hidden_size;
  const Index half = config.head_dim / 2;
  const Index qk_width = (config.num_heads + config.num_kv_heads) * config.head_dim;
  const bool drop_attention = recompute == Recompute::attention || recompute == Recompute::block;
  const bool drop_mlp = recompute == Recompute::mlp || recompute == Recompute::block;
  const Index layers = config.num_layers;
  const Index attention_copies = drop_attention ? 1 : layers;
  Allocator memory(arena, dtype);

  qkv_ = memory.many(attention_copies, dtype, {tokens, config.qkv_width()}, "qkv");
  rotated_qk_ =
      memory.many(attention_copies, dtype, {tokens, config.qk_norm ? qk_width : 0}, "rotated qk");
  attended_ = memory.many(attention_copies, dtype, {tokens, config.query_width()}, "attended");
  lse_ = memory.many(attention_copies, DType::f32,
                     {batch.sequences, config.num_heads, batch.length}, "attention lse");
  middle_ =
      memory.many(recompute == Recompute::block ? 1 : layers, dtype, {tokens, width}, "middle");
  gate_up_ =
      memory.many(drop_mlp ? 1 : layers, dtype, {tokens, 2 * config.intermediate_size}, "gate up");

  normed_ = memory.one({tokens, width}, "activations/passing");
  product_ = memory.one({tokens, config.intermediate_size}, "activations/passing");
  d_attended_ = memory.one({tokens, config.query_width()}, "activations/passing");
  d_qkv_ = memory.one({tokens, config.qkv_width()}, "activations/passing");
  d_hidden_ = memory.one({tokens, width}, "activations/passing");

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

void Activations::use_residuals(Index set) {
  inputs_.use(set);
}

TensorView Activations::residual(Index layer) {
  return inputs_.view(layer);
}

BlockActivations Activations::block(Index layer) {
  return {.residual = residual(layer),
          .qkv = pick(qkv_, layer),
          .rotated_qk = pick(rotated_qk_, layer),
          .attended = pick(attended_, layer),
          .lse = pick(lse_, layer),
          .middle = pick(middle_, layer),
          .gate_up = pick(gate_up_, layer),
          .output = residual(layer + 1)};
}

}  // namespace tessera
