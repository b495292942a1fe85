// Sizes and settings of a decoder-only transformer, under the names Hugging Face uses, and the
// presets.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device/stream.h"
#include "model/rope_scaling.h"

namespace tessera {

/// Qwen3 (QK-norm, biases if configured), Qwen2 (bias on q, k, v), Llama (biases if configured) and
/// Mistral are settings of one implementation.
struct ModelConfig {
  std::string model_type = "qwen3";  // qwen3, qwen2, llama, mistral: for Hugging Face's config.json
  Index vocab_size = 0;
  Index hidden_size = 0;
  Index intermediate_size = 0;
  Index num_layers = 0;
  Index num_heads = 0;
  Index num_kv_heads = 0;
  Index head_dim = 0;
  bool qk_norm = true;
  bool attention_bias = false;      // on q, k and v
  bool attention_out_bias = false;  // on the output projection: with attention_bias, but for Qwen2
  bool mlp_bias = false;            // on gate, up and down
  bool tie_embeddings = true;
  double rope_theta = 1e6;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  Index max_position = 40960;
  RopeScaling rope{};
  /// Tokens that attention sees, itself counted, in the layers that `sliding_layers` names (one
  /// entry each); 0: every layer sees all tokens before, and `sliding_layers` is empty.
  Index sliding_window = 0;
  std::vector<bool> sliding_layers{};
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;

  /// Elements of one fused row of q, k and v: (Hq + 2 Hkv) * D.
  [[nodiscard]] Index qkv_width() const noexcept {
    return (num_heads + 2 * num_kv_heads) * head_dim;
  }
  [[nodiscard]] Index query_width() const noexcept { return num_heads * head_dim; }
  /// What AttentionShape::window of a layer is.
  [[nodiscard]] Index window_of(Index layer) const noexcept {
    return sliding_window > 0 && sliding_layers[static_cast<std::size_t>(layer)] ? sliding_window
                                                                                 : 0;
  }
};

/// Throws ConfigError naming the value that does not fit (heads no multiple of kv heads, odd
/// head_dim, sizes below 1, ...).
void check(const ModelConfig& config);

/// "tiny", "small", "d12", "qwen2.5-0.5b", ..., "llama3.1-70b". `tiny` and `small` take their
/// vocabulary from the data: vocab_size is 0 in them.
[[nodiscard]] std::vector<std::string> preset_names();
/// Throws ConfigError listing the presets if there is none of this name.
[[nodiscard]] ModelConfig preset(std::string_view name);

/// Reads a Hugging Face config.json. Fields that it leaves out have the values that transformers
/// takes for the family. Throws FormatError (not JSON, absurd values) or ConfigError (a model we do
/// not train: dropout, other activations, rope types such as longrope, quantised, ...).
[[nodiscard]] ModelConfig read_config_json(const std::filesystem::path& file);
[[nodiscard]] ModelConfig parse_config_json(std::string_view text, std::string_view source);
/// The same settings as Hugging Face's config.json, for export and for checkpoints.
[[nodiscard]] std::string to_config_json(const ModelConfig& config);

/// Whether this names a file, and not a preset: it ends with .json, or has a slash.
[[nodiscard]] bool is_model_file(const std::string& name_or_path);
/// A preset's name, or the path of a config.json. Throws ConfigError for a folder, and says what to
/// give in its place.
[[nodiscard]] ModelConfig find_model(const std::string& name_or_path);

/// Weights, each once (tied ones too).
[[nodiscard]] Index parameter_count(const ModelConfig& config);
/// Floating-point operations of forward and backward for one token at sequence length T:
/// 6 * (weights of all projections and the head) + 6 * L * Hq * D * T (causal attention; in a layer
/// with a window of W tokens W * (2 - W / T) in the place of T).
/// Recomputation counts nothing.
[[nodiscard]] double flops_per_token(const ModelConfig& config, Index sequence);

}  // namespace tessera
