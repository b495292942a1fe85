// Which low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685) a run trains beside the linear
// layers of a model whose own weights are frozen:
//
//   y = x W^T + s (x A^T) B^T      A [r, in], B [out, r]
//
//   s = alpha / r, or alpha / sqrt(r) where it is rank-stabilised (Kalajdzievski 2023,
//   arXiv:2312.03732)
//
// Layers go by Hugging Face's names, although q, k, v and gate, up are stored as one matrix each.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device/tensor_view.h"

namespace tessera {

struct ModelConfig;

/// A linear layer that an adapter may stand beside, in the order of a block.
enum class Projection : std::uint8_t { q, k, v, o, gate, up, down };

/// Where it is, here and in Hugging Face's files.
struct ProjectionRow {
  Projection projection;
  std::string_view name;    // "q_proj"
  std::string_view module;  // "self_attn.q_proj"
  std::string_view suffix;  // "attention.q": of the names of its adapter's tensors
  std::string_view fused;   // "attention.qkv": the matrix of ParamLayout that has its rows
};
[[nodiscard]] std::span<const ProjectionRow> projection_table();
[[nodiscard]] const ProjectionRow& row_of(Projection projection);

struct ProjectionSizes {
  Index in;
  Index out;
  Index first_row;  // in the matrix that has its rows
};
[[nodiscard]] ProjectionSizes projection_sizes(const ModelConfig& config, Projection projection);

/// How A begins, as PEFT has it: uniform in +-1/sqrt(in) (Kaiming with a = sqrt(5)), or normal with
/// standard deviation 1/r. B begins with zeros, so that the first step is the base's.
enum class AdapterInit : std::uint8_t { kaiming, gaussian };

struct AdapterConfig {
  Index rank = 0;
  double alpha = 0;
  bool rank_stabilized = false;
  std::vector<Projection> targets;  // in the order of the enumeration, each once, at least one
  bool trains_embeddings = false;   // embedding and LM head are trained as a whole

  [[nodiscard]] double scale() const noexcept;
  [[nodiscard]] bool has(Projection projection) const noexcept;
  friend bool operator==(const AdapterConfig&, const AdapterConfig&) = default;
};

/// What alpha may be.
inline constexpr double kLeastAdapterAlpha = 1e-6;
inline constexpr double kMostAdapterAlpha = 1e6;
inline constexpr Index kMostAdapterRank = Index{1} << 16;

/// "all", "attention", "mlp", or names with commas between them ("q_proj,v_proj"). Throws
/// ConfigError, naming `option`, for others and for names that come twice.
[[nodiscard]] std::vector<Projection> parse_projections(std::string_view text,
                                                        std::string_view option);
/// "all" and so on where that says it, else the names: parses back.
[[nodiscard]] std::string projections_text(std::span<const Projection> projections);

/// "rank 8, alpha 16, of q_proj and v_proj": for messages.
[[nodiscard]] std::string adapter_text(const AdapterConfig& adapters);

/// As a checkpoint has it, and back. Throws FormatError, naming `name`.
[[nodiscard]] std::string to_adapter_json(const AdapterConfig& adapters);
[[nodiscard]] AdapterConfig parse_adapter_json(const std::string& text, const std::string& name);

}  // namespace tessera
