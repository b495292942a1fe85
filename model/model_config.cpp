#include "model/model_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "model/model_limits.h"

namespace tessera {
namespace {

// No model has so many parameters; below it every sum and product of sizes fits in an Index.
constexpr double kLargestParameterCount = 0x1p50;

struct Preset {
  const char* name;
  ModelConfig config;
};

ModelConfig qwen3(Index hidden, Index intermediate, Index layers, Index heads, bool tied) {
  ModelConfig c;
  c.vocab_size = 151936;
  c.hidden_size = hidden;
  c.intermediate_size = intermediate;
  c.num_layers = layers;
  c.num_heads = heads;
  c.num_kv_heads = 8;
  c.head_dim = 128;
  c.tie_embeddings = tied;
  return c;
}

ModelConfig qwen2(Index hidden, Index intermediate, Index layers, Index heads, Index kv_heads,
                  Index head_dim) {
  ModelConfig c;
  c.model_type = "qwen2";
  c.vocab_size = 151936;
  c.hidden_size = hidden;
  c.intermediate_size = intermediate;
  c.num_layers = layers;
  c.num_heads = heads;
  c.num_kv_heads = kv_heads;
  c.head_dim = head_dim;
  c.qk_norm = false;
  c.attention_bias = true;
  c.max_position = 32768;
  return c;
}

ModelConfig large_qwen2(Index hidden, Index intermediate, Index layers, Index heads,
                        Index kv_heads) {
  ModelConfig c = qwen2(hidden, intermediate, layers, heads, kv_heads, 128);
  c.vocab_size = 152064;
  c.max_position = 131072;
  c.tie_embeddings = false;
  return c;
}

ModelConfig llama3(Index hidden, Index intermediate, Index layers, Index heads) {
  ModelConfig c = qwen3(hidden, intermediate, layers, heads, false);
  c.model_type = "llama";
  c.vocab_size = 128256;
  c.qk_norm = false;
  c.rms_norm_eps = 1e-5;
  c.rope_theta = 5e5;
  c.rope.type = RopeType::llama3;
  c.rope.factor = 8;
  c.max_position = 131072;
  return c;
}

// Qwen3's architecture in sizes of our own; the vocabulary of tiny and small is the data's.
ModelConfig own(Index vocab, Index hidden, Index intermediate, Index layers, Index heads,
                Index kv_heads, Index head_dim) {
  ModelConfig c;
  c.vocab_size = vocab;
  c.hidden_size = hidden;
  c.intermediate_size = intermediate;
  c.num_layers = layers;
  c.num_heads = heads;
  c.num_kv_heads = kv_heads;
  c.head_dim = head_dim;
  c.rope_theta = 1e4;
  return c;
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      {"tiny", own(0, 128, 384, 4, 4, 2, 32)},
      {"small", own(0, 512, 1408, 8, 8, 4, 64)},
      {"d12", own(50304, 768, 2048, 12, 12, 12, 64)},
      {"qwen2.5-0.5b", qwen2(896, 4864, 24, 14, 2, 64)},
      {"qwen2.5-1.5b", qwen2(1536, 8960, 28, 12, 2, 128)},
      {"qwen2.5-3b", qwen2(2048, 11008, 36, 16, 2, 128)},
      {"qwen2.5-7b", large_qwen2(3584, 18944, 28, 28, 4)},
      {"qwen2.5-14b", large_qwen2(5120, 13824, 48, 40, 8)},
      {"qwen2.5-32b", large_qwen2(5120, 27648, 64, 40, 8)},
      {"qwen3-0.6b", qwen3(1024, 3072, 28, 16, true)},
      {"qwen3-1.7b", qwen3(2048, 6144, 28, 16, true)},
      {"qwen3-4b", qwen3(2560, 9728, 36, 32, true)},
      {"qwen3-8b", qwen3(4096, 12288, 36, 32, false)},
      {"qwen3-14b", qwen3(5120, 17408, 40, 40, false)},
      {"qwen3-32b", qwen3(5120, 25600, 64, 64, false)},
      {"llama3.1-8b", llama3(4096, 14336, 32, 32)},
      {"llama3.1-70b", llama3(8192, 28672, 80, 64)},
  };
  return all;
}

[[noreturn]] void refuse(const std::string& message) {
  throw ConfigError(message, TESSERA_HERE);
}

void require_size(Index value, const char* name) {
  if (value < 1 || value > kLargestSize) {
    refuse(fmt::format("the model's {} is {}: it must be between 1 and {}", name, value,
                       kLargestSize));
  }
}

}  // namespace

void check(const ModelConfig& config) {
  require_size(config.vocab_size, "vocab_size");
  require_size(config.hidden_size, "hidden_size");
  require_size(config.intermediate_size, "intermediate_size");
  require_size(config.num_layers, "num_hidden_layers");
  require_size(config.num_heads, "num_attention_heads");
  require_size(config.num_kv_heads, "num_key_value_heads");
  require_size(config.head_dim, "head_dim");
  if (config.vocab_size > std::numeric_limits<std::int32_t>::max()) {
    refuse(fmt::format("the model's vocab_size {} does not fit token ids of 32 bits",
                       config.vocab_size));
  }
  if (config.num_layers > kLargestLayerCount) {
    refuse(fmt::format("the model's num_hidden_layers is {}: it must be at most {}",
                       config.num_layers, kLargestLayerCount));
  }
  const auto real = [](Index size) { return static_cast<double>(size); };
  const double block =
      real(config.hidden_size) *
      (real(config.qkv_width()) + real(config.query_width()) + 3 * real(config.intermediate_size));
  const double parameters =
      real(config.num_layers) * block + 2 * real(config.vocab_size) * real(config.hidden_size);
  if (parameters > kLargestParameterCount) {
    refuse(fmt::format("the model's sizes give {:.1e} parameters: at most {:.1e} are supported",
                       parameters, kLargestParameterCount));
  }
  if (config.num_heads % config.num_kv_heads != 0) {
    refuse(fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}",
                       config.num_heads, config.num_kv_heads));
  }
  if (config.head_dim % 2 != 0) {
    refuse(fmt::format("head_dim {} is odd: rotary embedding needs pairs", config.head_dim));
  }
  for (const auto& [name, value] : {std::pair{"rms_norm_eps", config.rms_norm_eps},
                                    std::pair{"rope_theta", config.rope_theta}}) {
    if (!(value > 0)) {
      refuse(fmt::format("{} is {}: it must be above 0", name, value));
    }
  }
  if (!(config.initializer_range >= 0) || config.initializer_range > 1) {
    refuse(fmt::format("initializer_range is {}: it must be between 0 and 1",
                       config.initializer_range));
  }
  check(config.rope);
  if (config.sliding_window < 0 ||
      std::ssize(config.sliding_layers) != (config.sliding_window > 0 ? config.num_layers : 0)) {
    refuse(fmt::format("sliding_window is {}, for {} of {} layers: it must be at least 1, and each "
                       "layer have it or not",
                       config.sliding_window, config.sliding_layers.size(), config.num_layers));
  }
  constexpr Index kLeastDynamic = 4;
  if (config.rope.type == RopeType::dynamic && config.head_dim < kLeastDynamic) {
    refuse(fmt::format("head_dim {} is too small for dynamic rope scaling: {} is the least",
                       config.head_dim, kLeastDynamic));
  }
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& each : presets()) {
    names.emplace_back(each.name);
  }
  return names;
}

ModelConfig preset(std::string_view name) {
  for (const Preset& each : presets()) {
    if (name == each.name) {
      return each.config;
    }
  }
  refuse(fmt::format("there is no model preset '{}': choose one of {}, or give the path of a "
                     "config.json",
                     name, fmt::join(preset_names(), ", ")));
}

bool is_model_file(const std::string& name_or_path) {
  return name_or_path.ends_with(".json") || name_or_path.find('/') != std::string::npos;
}

ModelConfig find_model(const std::string& name_or_path) {
  const std::vector<std::string> names = preset_names();
  std::error_code ignored;
  if (std::find(names.begin(), names.end(), name_or_path) == names.end() &&
      std::filesystem::is_directory(name_or_path, ignored)) {
    const std::filesystem::path file = std::filesystem::path(name_or_path) / "config.json";
    refuse(fmt::format("--model {} is a folder: train --init {} starts from the weights in it; {}",
                       name_or_path, name_or_path,
                       std::filesystem::exists(file, ignored)
                           ? fmt::format("--model {} makes a new model of its shape, with random "
                                         "weights",
                                         file.string())
                           : "for a new model give a preset's name or a config.json"));
  }
  if (is_model_file(name_or_path)) {
    return read_config_json(name_or_path);
  }
  return preset(name_or_path);
}

namespace {

Index block_matrix_weights(const ModelConfig& c) {
  return c.hidden_size * (c.qkv_width() + c.query_width() + 3 * c.intermediate_size);
}

}  // namespace

Index parameter_count(const ModelConfig& c) {
  const Index biases = (c.attention_bias ? c.qkv_width() : 0) +
                       (c.attention_out_bias ? c.hidden_size : 0) +
                       (c.mlp_bias ? 2 * c.intermediate_size + c.hidden_size : 0);
  const Index block =
      block_matrix_weights(c) + 2 * c.hidden_size + biases + (c.qk_norm ? 2 * c.head_dim : 0);
  return c.num_layers * block + c.hidden_size +
         c.vocab_size * c.hidden_size * (c.tie_embeddings ? 1 : 2);
}

double flops_per_token(const ModelConfig& c, Index sequence) {
  const auto weights =
      static_cast<double>(c.num_layers * block_matrix_weights(c) + c.vocab_size * c.hidden_size);
  double keys = 0;  // of all layers, twice the mean that a token sees
  for (Index layer = 0; layer < c.num_layers; ++layer) {
    const Index window = c.window_of(layer);
    const auto seen = static_cast<double>(window == 0 ? sequence : std::min(window, sequence));
    keys += seen * (2 - seen / static_cast<double>(sequence));
  }
  const double attention = static_cast<double>(c.query_width()) * keys;
  return 6 * weights + 6 * attention;
}

}  // namespace tessera
