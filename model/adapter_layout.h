// Where the parameters of adapters are stored: a ParamLayout of its own beside the frozen base's, with
// a unit a block, so that gradients, optimizer state and checkpoints know nothing of adapters.
//
//   "embedding"  embedding.weight [V, C]      only where embeddings are trained
//   "block.i"    attention.q.lora_a [r, C], attention.k.lora_a [r, C], attention.v.lora_a [r, C],
//                attention.q.lora_b [Hq D, r], attention.k.lora_b [Hkv D, r], attention.v.lora_b,
//                attention.o.lora_a [r, Hq D], attention.o.lora_b [C, r],
//                mlp.gate.lora_a [r, C], mlp.up.lora_a, mlp.gate.lora_b [F, r], mlp.up.lora_b,
//                mlp.down.lora_a [r, F], mlp.down.lora_b [C, r]
//   "head"       head.weight [V, C]           only where embeddings are trained and not tied
//
// The A of layers that read the same input follow one another, so that x A^T of all is one GEMM.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "model/adapter_config.h"
#include "model/param_layout.h"

namespace tessera {

class AdapterLayout {
 public:
  /// Throws ConfigError for a rank outside 1 to kMostAdapterRank, and without targets.
  AdapterLayout(const ModelConfig& config, const AdapterConfig& adapters);

  [[nodiscard]] const ParamLayout& params() const noexcept { return params_; }
  [[nodiscard]] const AdapterConfig& config() const noexcept { return config_; }
  [[nodiscard]] UnitId block(Index layer) const noexcept {
    return static_cast<UnitId>(layer) + (config_.trains_embeddings ? 1 : 0);
  }
  [[nodiscard]] std::optional<UnitId> embedding() const noexcept {
    return config_.trains_embeddings ? std::optional(0) : std::nullopt;
  }
  /// None where it is the embedding, too.
  [[nodiscard]] std::optional<UnitId> head() const noexcept {
    return config_.trains_embeddings && !is_tied_ ? std::optional(params_.unit_count() - 1)
                                                  : std::nullopt;
  }
  /// Most rows of A that one matrix of the base has beside it.
  [[nodiscard]] Index widest() const noexcept { return widest_; }
  /// Rows of A in a block.
  [[nodiscard]] Index block_width() const noexcept {
    return static_cast<Index>(config_.targets.size()) * config_.rank;
  }

 private:
  AdapterConfig config_;
  bool is_tied_;
  ParamLayout params_;
  Index widest_;
};

/// flops_per_token of a model whose weights are frozen: without their gradients, and with the GEMMs of
/// its adapters.
[[nodiscard]] double flops_per_token(const ModelConfig& config, const AdapterLayout& adapters,
                                     Index sequence);

/// Fresh adapters by element number, the same on any number of ranks: A as `init` says, B zero.
/// Fills `values` with elements [begin, begin + values.size()) of `unit`; other tensors and
/// padding stay as they are. Requires: not the embedding or the head.
void initial_adapters(const AdapterLayout& layout, UnitId unit, AdapterInit init,
                      std::uint64_t seed, Index begin, std::span<float> values);

}  // namespace tessera
