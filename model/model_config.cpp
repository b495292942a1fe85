#include "model/model_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/device/error.h"
#include "model/file_handle.h"
#include "model/json_text.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// No model has sizes beyond this; a larger number in a file is damage, and products of two such
// sizes still fit in an Index.
constexpr Index kLargestSize = Index{1} << 30;
constexpr Index kLargestLayerCount = Index{1} << 16;
// Nor does any have so many parameters; below it every sum and product of sizes fits in an Index.
constexpr double kLargestParameterCount = 0x1p50;
constexpr std::int64_t kLargestConfigBytes = std::int64_t{16} << 20U;

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
      {"qwen3-0.6b", qwen3(1024, 3072, 28, 16, true)},
      {"qwen3-1.7b", qwen3(2048, 6144, 28, 16, true)},
      {"qwen3-4b", qwen3(2560, 9728, 36, 32, true)},
      {"qwen3-8b", qwen3(4096, 12288, 36, 32, false)},
      {"qwen3-14b", qwen3(5120, 17408, 40, 40, false)},
      {"qwen3-32b", qwen3(5120, 25600, 64, 64, false)},
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

// Reads values of one JSON object; every complaint names the file and the key.
class ConfigReader {
 public:
  ConfigReader(const Json& object, std::string_view source) : object_(object), source_(source) {}

  [[nodiscard]] bool has(const char* key) const {
    return object_.contains(key) && !object_.at(key).is_null();
  }
  [[nodiscard]] bool is_null(const char* key) const {
    return object_.contains(key) && object_.at(key).is_null();
  }
  [[nodiscard]] Index integer(const char* key) const {
    const Json& value = required(key);
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() && value.get<std::uint64_t>() > kLargestSize) ||
        value.get<std::int64_t>() < 0 || value.get<std::int64_t>() > kLargestSize) {
      wrong(key, fmt::format("an integer between 0 and {}", kLargestSize));
    }
    return value.get<Index>();
  }
  [[nodiscard]] Index integer(const char* key, Index otherwise) const {
    return has(key) ? integer(key) : otherwise;
  }
  [[nodiscard]] double real(const char* key) const {
    const Json& value = required(key);
    if (!value.is_number() || !std::isfinite(value.get<double>())) {
      wrong(key, "a number");
    }
    return value.get<double>();
  }
  [[nodiscard]] double real(const char* key, double otherwise) const {
    return has(key) ? real(key) : otherwise;
  }
  [[nodiscard]] bool flag(const char* key, bool otherwise) const {
    if (!has(key)) {
      return otherwise;
    }
    if (!object_.at(key).is_boolean()) {
      wrong(key, "true or false");
    }
    return object_.at(key).get<bool>();
  }
  [[nodiscard]] std::string text(const char* key, std::string otherwise) const {
    if (!has(key)) {
      return otherwise;
    }
    if (!object_.at(key).is_string()) {
      wrong(key, "a string");
    }
    return object_.at(key).get<std::string>();
  }
  [[nodiscard]] ConfigReader object(const char* key) const {
    if (!object_.at(key).is_object()) {
      wrong(key, "an object");
    }
    return {object_.at(key), source_};
  }

 private:
  const Json& required(const char* key) const {
    if (!has(key)) {
      throw FormatError(fmt::format("{}: \"{}\" is missing", source_, key), TESSERA_HERE);
    }
    return object_.at(key);
  }
  [[noreturn]] void wrong(const char* key, const std::string& wanted) const {
    throw FormatError(fmt::format("{}: \"{}\" is not {}", source_, key, wanted), TESSERA_HERE);
  }

  const Json& object_;
  std::string_view source_;
};

// Newer files name the kind of attention of each layer.
bool has_other_layer_types(const Json& json) {
  const auto types = json.find("layer_types");
  return types != json.end() && types->is_array() &&
         std::any_of(types->begin(), types->end(),
                     [](const Json& type) { return type != "full_attention"; });
}

void read_rope(const ConfigReader& rope, std::string_view source, ModelConfig& config) {
  config.rope_theta = rope.real("rope_theta", config.rope_theta);
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  if (type == "default") {
    return;
  }
  if (type != "llama3") {
    refuse(fmt::format("{}: rope_type \"{}\" is not supported (default and llama3 are)", source,
                       type));
  }
  config.rope_factor = rope.real("factor");
  if (config.rope_factor == 1) {
    return;  // no scaling: the other numbers have no meaning, and are not kept
  }
  config.rope_low_freq_factor = rope.real("low_freq_factor");
  config.rope_high_freq_factor = rope.real("high_freq_factor");
  config.rope_original_max_position = rope.integer("original_max_position_embeddings");
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
    refuse(fmt::format("num_attention_heads {} is no multiple of num_key_value_heads {}",
                       config.num_heads, config.num_kv_heads));
  }
  if (config.head_dim % 2 != 0) {
    refuse(fmt::format("head_dim {} is odd: rotary embedding needs pairs", config.head_dim));
  }
  if (!(config.rms_norm_eps > 0) || !(config.rope_theta > 0) || !(config.rope_factor > 0)) {
    refuse("rms_norm_eps, rope_theta and the rope factor must be above 0");
  }
  if (!(config.rope_low_freq_factor > 0) ||
      !(config.rope_high_freq_factor > config.rope_low_freq_factor) ||
      config.rope_original_max_position < 1) {
    refuse("llama3 rope scaling needs 0 < low_freq_factor < high_freq_factor and "
           "original_max_position_embeddings of at least 1");
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

ModelConfig parse_config_json(std::string_view text, std::string_view source) {
  const Json json = parse_json(text, source);
  if (!json.is_object()) {
    throw FormatError(fmt::format("{} is not a JSON object", source), TESSERA_HERE);
  }
  const ConfigReader reader(json, source);
  ModelConfig c;
  c.model_type = reader.text("model_type", "");
  constexpr std::array kTypes = {"qwen3", "qwen2", "llama", "mistral"};
  if (std::find(kTypes.begin(), kTypes.end(), c.model_type) == kTypes.end()) {
    refuse(fmt::format("{}: model_type \"{}\" is not supported ({} are)", source, c.model_type,
                       fmt::join(kTypes, ", ")));
  }
  if (const std::string act = reader.text("hidden_act", "silu"); act != "silu") {
    refuse(fmt::format("{}: hidden_act \"{}\" is not supported (silu is)", source, act));
  }
  // Mistral slides unless its file says null: the family's default is a window of 4096.
  const bool slides = c.model_type == "mistral" ? !reader.is_null("sliding_window")
                                                : reader.flag("use_sliding_window", false);
  if (slides || has_other_layer_types(json)) {
    refuse(fmt::format("{}: sliding-window attention is not supported", source));
  }
  if (reader.flag("mlp_bias", false)) {
    refuse(fmt::format("{}: mlp_bias is not supported", source));
  }
  c.vocab_size = reader.integer("vocab_size");
  c.hidden_size = reader.integer("hidden_size");
  c.intermediate_size = reader.integer("intermediate_size");
  c.num_layers = reader.integer("num_hidden_layers");
  c.num_heads = reader.integer("num_attention_heads");
  c.num_kv_heads = reader.integer("num_key_value_heads", c.num_heads);
  c.head_dim =
      reader.integer("head_dim", c.num_heads > 0 ? c.hidden_size / c.num_heads : c.hidden_size);
  c.qk_norm = c.model_type == "qwen3";
  c.attention_bias = reader.flag("attention_bias", c.model_type == "qwen2");
  if (c.attention_bias && c.model_type != "qwen2") {
    // Qwen3 and Llama put a bias on the output projection too, which Qwen2 does not.
    refuse(fmt::format("{}: attention_bias is supported for qwen2 alone", source));
  }
  c.tie_embeddings = reader.flag("tie_word_embeddings", false);
  c.rms_norm_eps = reader.real("rms_norm_eps", 1e-6);
  c.initializer_range = reader.real("initializer_range", 0.02);
  c.max_position = reader.integer("max_position_embeddings", 40960);
  c.rope_theta = reader.real("rope_theta", 1e4);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (reader.has(key)) {
      read_rope(reader.object(key), source, c);
    }
  }
  check(c);
  return c;
}

ModelConfig read_config_json(const std::filesystem::path& file) {
  return parse_config_json(read_small_file(file, kLargestConfigBytes), file.string());
}

std::string to_config_json(const ModelConfig& c) {
  const auto architecture = [&c] {
    if (c.model_type == "qwen2") {
      return "Qwen2ForCausalLM";
    }
    if (c.model_type == "llama") {
      return "LlamaForCausalLM";
    }
    return c.model_type == "mistral" ? "MistralForCausalLM" : "Qwen3ForCausalLM";
  };
  Json json = {{"architectures", {architecture()}},
               {"model_type", c.model_type},
               {"vocab_size", c.vocab_size},
               {"hidden_size", c.hidden_size},
               {"intermediate_size", c.intermediate_size},
               {"num_hidden_layers", c.num_layers},
               {"num_attention_heads", c.num_heads},
               {"num_key_value_heads", c.num_kv_heads},
               {"head_dim", c.head_dim},
               {"hidden_act", "silu"},
               {"attention_bias", c.attention_bias},
               {"attention_dropout", 0.0},
               {"tie_word_embeddings", c.tie_embeddings},
               {"rms_norm_eps", c.rms_norm_eps},
               {"initializer_range", c.initializer_range},
               {"max_position_embeddings", c.max_position},
               {"rope_theta", c.rope_theta},
               {"use_cache", true}};
  if (c.model_type == "mistral") {
    json["sliding_window"] = nullptr;  // without it the family's default is a window of 4096
  }
  if (c.rope_factor != 1) {
    json["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", c.rope_factor},
                            {"low_freq_factor", c.rope_low_freq_factor},
                            {"high_freq_factor", c.rope_high_freq_factor},
                            {"original_max_position_embeddings", c.rope_original_max_position}};
  }
  return json.dump(2);
}

bool is_model_file(const std::string& name_or_path) {
  return name_or_path.ends_with(".json") || name_or_path.find('/') != std::string::npos;
}

ModelConfig find_model(const std::string& name_or_path) {
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
  const Index block = block_matrix_weights(c) + 2 * c.hidden_size +
                      (c.attention_bias ? c.qkv_width() : 0) + (c.qk_norm ? 2 * c.head_dim : 0);
  return c.num_layers * block + c.hidden_size +
         c.vocab_size * c.hidden_size * (c.tie_embeddings ? 1 : 2);
}

double flops_per_token(const ModelConfig& c, Index sequence) {
  const auto weights =
      static_cast<double>(c.num_layers * block_matrix_weights(c) + c.vocab_size * c.hidden_size);
  const auto attention =
      static_cast<double>(c.num_layers * c.query_width()) * static_cast<double>(sequence);
  return 6 * weights + 6 * attention;
}

}  // namespace tessera
