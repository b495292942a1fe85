// config.json of Hugging Face, read and written: what transformers 4 and 5 take for each field.
#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "model/json_text.h"
#include "model/model_config.h"
#include "model/model_limits.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kLargestConfigBytes = std::int64_t{16} << 20U;

[[noreturn]] void refuse(const std::string& message) {
  throw ConfigError(message, TESSERA_HERE);
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
  /// `otherwise` where there is no such key; null is not a number.
  [[nodiscard]] Index integer(const char* key, Index otherwise) const {
    return object_.contains(key) ? integer(key) : otherwise;
  }
  [[nodiscard]] double real(const char* key) const {
    const Json& value = required(key);
    if (!value.is_number() || !std::isfinite(value.get<double>())) {
      wrong(key, "a number");
    }
    return value.get<double>();
  }
  [[nodiscard]] double real(const char* key, double otherwise) const {
    return object_.contains(key) ? real(key) : otherwise;
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
      throw FormatError(
          fmt::format("{}: \"{}\" is {}", source_, key, object_.contains(key) ? "null" : "missing"),
          TESSERA_HERE);
    }
    return object_.at(key);
  }
  [[noreturn]] void wrong(const char* key, const std::string& wanted) const {
    throw FormatError(fmt::format("{}: \"{}\" is not {}", source_, key, wanted), TESSERA_HERE);
  }

  const Json& object_;
  std::string_view source_;
};

// What transformers takes for fields that a family's config.json leaves out. Equal in all of them:
// the constants below. tests/golden/config_defaults.json holds what transformers itself says.
struct Family {
  std::string_view model_type;
  std::string_view architecture;
  Index vocab_size;
  Index intermediate_size;
  Index num_kv_heads;  // 0: as many as query heads
  Index head_dim;      // 0: hidden_size / num_attention_heads
  Index max_position;
  bool chooses_attention_bias;  // by attention_bias, on q, k, v and the output projection
  bool chooses_mlp_bias;
};

constexpr std::array kFamilies = {
    Family{"qwen3", "Qwen3ForCausalLM", 151936, 22016, 32, 128, 32768, true, false},
    Family{"qwen2", "Qwen2ForCausalLM", 151936, 22016, 32, 0, 32768, false, false},
    Family{"llama", "LlamaForCausalLM", 32000, 11008, 0, 0, 2048, true, true},
    Family{"mistral", "MistralForCausalLM", 32000, 14336, 8, 0, 131072, false, false}};
constexpr Index kHiddenSize = 4096;
constexpr Index kLayers = 32;
constexpr Index kHeads = 32;
constexpr Index kMaxWindowLayers = 28;
constexpr Index kSlidingWindow = 4096;
constexpr double kRopeTheta = 1e4;
constexpr double kRmsNormEps = 1e-6;
constexpr double kInitializerRange = 0.02;

const Family& family_of(std::string_view model_type, std::string_view source) {
  const auto* const found =
      std::find_if(kFamilies.begin(), kFamilies.end(),
                   [&](const Family& each) { return each.model_type == model_type; });
  if (found == kFamilies.end()) {
    std::vector<std::string_view> names;
    names.reserve(kFamilies.size());
    for (const Family& each : kFamilies) {
      names.push_back(each.model_type);
    }
    refuse(fmt::format("{}: model_type \"{}\" is not supported ({} are)", source, model_type,
                       fmt::join(names, ", ")));
  }
  return *found;
}

std::string shown(const Json& value) {
  constexpr std::size_t kMostBytes = 60;
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= kMostBytes ? text : text.substr(0, kMostBytes) + "...";
}

// Fields that make another function of the same weights, or other weights, where they do not have
// one of these values. No field of this kind may be passed over: what is not here and not read
// below does not change what transformers computes for a supported model_type.
struct NeutralField {
  const char* name;
  std::vector<Json> values;  // null besides
};

const std::vector<NeutralField>& neutral_fields() {
  static const std::vector<NeutralField> all = {{"quantization_config", {}},
                                                {"compression_config", {}},
                                                {"is_encoder_decoder", {false}},
                                                {"add_cross_attention", {false}},
                                                {"tie_encoder_decoder", {false}},
                                                {"cross_attention_hidden_size", {}},
                                                {"pruned_heads", {Json::object()}},
                                                {"is_causal", {true}},
                                                {"use_bidirectional_attention", {false}},
                                                {"partial_rotary_factor", {1}},
                                                {"rotary_pct", {1}},
                                                {"rope_interleaved", {false}},
                                                {"no_rope_layers", {Json::array()}},
                                                {"attention_chunk_size", {}},
                                                {"attn_logit_softcapping", {}},
                                                {"final_logit_softcapping", {}},
                                                {"logit_scale", {1}},
                                                {"logits_scaling", {1}},
                                                {"embedding_multiplier", {1}},
                                                {"residual_multiplier", {1}},
                                                {"attention_multiplier", {}},
                                                {"query_pre_attn_scalar", {}},
                                                {"clip_qkv", {}},
                                                {"alibi", {false}},
                                                {"parallel_attn", {false}},
                                                {"qk_layernorm", {false}},
                                                {"num_experts", {0, 1}},
                                                {"num_local_experts", {0, 1}},
                                                {"n_routed_experts", {0, 1}},
                                                {"num_nextn_predict_layers", {0}},
                                                {"vision_config", {}},
                                                {"audio_config", {}}};
  return all;
}

void refuse_unsupported_fields(const Json& json, std::string_view source) {
  for (const NeutralField& field : neutral_fields()) {
    const auto found = json.find(field.name);
    if (found == json.end() || found->is_null() ||
        std::find(field.values.begin(), field.values.end(), *found) != field.values.end()) {
      continue;
    }
    refuse(fmt::format("{}: {} is {}, which is not supported ({} is)", source, field.name,
                       shown(*found),
                       field.values.empty() ? std::string("only null") : shown(field.values[0])));
  }
}

// Of whatever name: attention_dropout, resid_pdrop, ... A classifier's is not part of the model.
void refuse_dropout(const Json& json, std::string_view source) {
  for (const auto& [key, value] : json.items()) {
    const bool is_dropout =
        key.find("dropout") != std::string::npos || key.ends_with("pdrop") || key == "layerdrop";
    if (!is_dropout || key.starts_with("classifier") || value.is_null() || value == false) {
      continue;
    }
    if (!value.is_number()) {
      throw FormatError(fmt::format("{}: \"{}\" is not a number", source, key), TESSERA_HERE);
    }
    if (value != 0) {
      refuse(fmt::format("{}: {} is {}: training with dropout is not supported; set it to 0 to "
                         "train without",
                         source, key, shown(value)));
    }
  }
}

// A file of a classifier or a reward model has other weights behind the blocks.
void refuse_other_heads(const Json& json, std::string_view source) {
  const auto found = json.find("architectures");
  if (found == json.end() || !found->is_array()) {
    return;
  }
  for (const Json& each : *found) {
    const std::string name = each.is_string() ? each.get<std::string>() : std::string();
    if (name.find("For") != std::string::npos && name.find("ForCausalLM") == std::string::npos) {
      refuse(fmt::format("{}: architectures names {}: language models (...ForCausalLM) are trained",
                         source, shown(each)));
    }
  }
}

// Which layers slide by "layer_types"; empty where the field is not there, or none does.
std::vector<bool> read_layer_types(const Json& types, const ModelConfig& config,
                                   std::string_view source) {
  if (!types.is_array()) {
    throw FormatError(fmt::format("{}: \"layer_types\" is not an array", source), TESSERA_HERE);
  }
  std::vector<bool> layers;
  for (const Json& type : types) {
    if (type != "full_attention" && type != "sliding_attention") {
      refuse(fmt::format("{}: layer_types has {}, which is not supported (full_attention and "
                         "sliding_attention are)",
                         source, shown(type)));
    }
    layers.push_back(type == "sliding_attention");
  }
  if (std::find(layers.begin(), layers.end(), true) == layers.end()) {
    return {};
  }
  if (std::ssize(layers) != config.num_layers) {
    refuse(fmt::format("{}: layer_types has {} entries for {} layers", source, layers.size(),
                       config.num_layers));
  }
  return layers;
}

// The window of tokens that layers see, and which do (AttentionShape::window).
void read_window(const ConfigReader& reader, const Json& json, ModelConfig& config,
                 std::string_view source) {
  const bool is_mistral = config.model_type == "mistral";
  const bool is_used = reader.flag("use_sliding_window", is_mistral);
  // transformers takes a window of 4096 where a file does not name one
  const bool is_null = reader.is_null("sliding_window");
  const std::vector<bool> typed = reader.has("layer_types")
                                      ? read_layer_types(json.at("layer_types"), config, source)
                                      : std::vector<bool>();
  if (!typed.empty() && (!is_used || is_null || is_mistral)) {
    refuse(fmt::format("{}: layer_types has sliding_attention, {}", source,
                       is_mistral ? "which a mistral has in all of its layers or in none"
                                  : "without use_sliding_window and sliding_window"));
  }
  if (is_mistral && is_null && reader.has("use_sliding_window") && is_used) {
    refuse(fmt::format("{}: use_sliding_window is true and sliding_window null: remove one of them",
                       source));
  }
  const bool may_slide = is_mistral ? !is_null : is_used && !is_null;
  if (!may_slide || config.num_layers > kLargestLayerCount) {  // so many are refused below
    return;
  }
  if (config.model_type == "llama") {
    refuse(fmt::format("{}: sliding-window attention is not supported in a llama", source));
  }
  std::vector<bool> layers = typed;
  if (layers.empty()) {
    if (reader.has("layer_types")) {
      return;  // all of them full_attention
    }
    const Index first = is_mistral ? 0 : reader.integer("max_window_layers", kMaxWindowLayers);
    for (Index layer = 0; layer < config.num_layers; ++layer) {
      layers.push_back(layer >= first);
    }
  }
  if (std::find(layers.begin(), layers.end(), true) != layers.end()) {
    config.sliding_window = reader.integer("sliding_window", kSlidingWindow);
    config.sliding_layers = layers;
  }
}

// What rope_scaling or rope_parameters says but for theta.
RopeScaling read_scaling(const ConfigReader& rope, const Json& object, const char* field,
                         Index max_position, std::string_view source) {
  constexpr std::array kKnown = {"rope_type",
                                 "type",
                                 "rope_theta",
                                 "factor",
                                 "low_freq_factor",
                                 "high_freq_factor",
                                 "original_max_position_embeddings",
                                 "beta_fast",
                                 "beta_slow",
                                 "truncate",
                                 "attention_factor",
                                 "mscale",
                                 "mscale_all_dim",
                                 "partial_rotary_factor"};
  const std::string name = rope.text("rope_type", rope.text("type", "default"));
  if (rope.text("type", name) != name) {
    refuse(fmt::format(R"({}: {} has the rope_type "{}" and the type "{}": remove one of them)",
                       source, field, name, rope.text("type", name)));
  }
  const std::optional<RopeType> type = find_rope_type(name);
  if (!type) {
    refuse(fmt::format("{}: rope_type \"{}\" is not supported (default, linear, dynamic, yarn and "
                       "llama3 are)",
                       source, name));
  }
  if (rope.has("partial_rotary_factor") && rope.real("partial_rotary_factor") != 1) {
    refuse(fmt::format("{}: partial_rotary_factor is {}, which is not supported (1 is)", source,
                       rope.real("partial_rotary_factor")));
  }
  RopeScaling scaling;
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const auto optional_real = [&rope](const char* key) {
    return rope.has(key) ? std::optional(rope.real(key)) : std::nullopt;
  };
  scaling.type = *type;
  if (*type == RopeType::llama3) {
    scaling.low_freq_factor = rope.real("low_freq_factor");
    scaling.high_freq_factor = rope.real("high_freq_factor");
    scaling.original_max_position = rope.integer(kOriginal);
  } else if (*type == RopeType::yarn) {
    scaling.original_max_position = rope.integer(kOriginal, max_position);
    scaling.beta_fast = rope.real("beta_fast", scaling.beta_fast);
    scaling.beta_slow = rope.real("beta_slow", scaling.beta_slow);
    scaling.truncate = rope.flag("truncate", scaling.truncate);
    scaling.attention_factor = optional_real("attention_factor");
    scaling.mscale = optional_real("mscale");
    scaling.mscale_all_dim = optional_real("mscale_all_dim");
  }
  // transformers 5 takes the ratio of positions where yarn has no factor
  const bool is_ratio = *type == RopeType::yarn && rope.has(kOriginal) && !rope.has("factor");
  if (is_ratio) {
    scaling.factor =
        static_cast<double>(max_position) / static_cast<double>(scaling.original_max_position);
  } else if (*type != RopeType::none) {
    scaling.factor = rope.real("factor");
  }
  for (const auto& [key, value] : object.items()) {
    if (std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end() && !value.is_null()) {
      refuse(fmt::format("{}: \"{}\" in {} is not supported", source, key, field));
    }
  }
  // A factor of 1 stretches nothing, and the other numbers have no meaning then; yarn may scale queries and keys all the same.
  const bool is_plain = scaling.factor == 1 && !scaling.attention_factor;
  return is_plain ? RopeScaling() : scaling;
}

// Two places for the same number must not say different things: which one counts depends on the
// version of transformers.
void require_one_theta(const ConfigReader& rope, const char* field, double theta,
                       std::string_view source) {
  const double other = rope.has("rope_theta") ? rope.real("rope_theta") : theta;
  if (other != theta) {
    refuse(fmt::format("{}: rope_theta is {} and {} of {}: remove the one that is out of date",
                       source, theta, other, field));
  }
}

// rope_scaling is the field of transformers 4, with rope_theta beside it, rope_parameters that
// of 5.
void read_rope(const ConfigReader& reader, const Json& json, std::string_view source,
               ModelConfig& config) {
  const auto says = [&](const char* field) {
    return reader.has(field) && !(json.at(field).is_object() && json.at(field).empty());
  };
  config.rope_theta = reader.real("rope_theta", kRopeTheta);
  RopeScaling scaling;
  if (says("rope_parameters")) {
    const ConfigReader rope = reader.object("rope_parameters");
    if (reader.has("rope_theta")) {
      require_one_theta(rope, "rope_parameters", config.rope_theta, source);
    }
    config.rope_theta = rope.real("rope_theta", config.rope_theta);
    scaling = read_scaling(rope, json.at("rope_parameters"), "rope_parameters", config.max_position,
                           source);
  }
  if (says("rope_scaling")) {
    const ConfigReader rope = reader.object("rope_scaling");
    require_one_theta(rope, "rope_scaling", config.rope_theta, source);
    const RopeScaling older =
        read_scaling(rope, json.at("rope_scaling"), "rope_scaling", config.max_position, source);
    if (says("rope_parameters") && !(older == scaling)) {
      refuse(fmt::format("{}: rope_scaling is {} and rope_parameters is {}: they disagree; remove "
                         "the one that is out of date",
                         source, shown(json.at("rope_scaling")),
                         shown(json.at("rope_parameters"))));
    }
    scaling = older;
  }
  constexpr const char* kOriginal =
      "original_max_position_embeddings";  // on its own, Phi-3's place
  const bool has_original = scaling.type == RopeType::llama3 || scaling.type == RopeType::yarn;
  if (has_original && reader.has(kOriginal) &&
      reader.integer(kOriginal) != scaling.original_max_position) {
    refuse(fmt::format("{}: {} is {} and, for the rotary embedding, {}: remove the one that is out "
                       "of date",
                       source, kOriginal, reader.integer(kOriginal),
                       scaling.original_max_position));
  }
  config.rope = scaling;
}

// Which projections have a bias follows from the family as much as from the file.
void read_biases(const ConfigReader& reader, const Family& family, std::string_view source,
                 ModelConfig& config) {
  const bool is_qwen2 = config.model_type == "qwen2";
  config.attention_bias = reader.flag("attention_bias", is_qwen2);
  if (!family.chooses_attention_bias && config.attention_bias != is_qwen2) {
    refuse(fmt::format("{}: attention_bias is {}, but models of type {} have {}: leave it out",
                       source, config.attention_bias, family.model_type,
                       is_qwen2 ? "a bias on q, k and v always" : "no biases"));
  }
  config.attention_out_bias = config.attention_bias && family.chooses_attention_bias;
  config.mlp_bias = reader.flag("mlp_bias", false);
  if (config.mlp_bias && !family.chooses_mlp_bias) {
    refuse(fmt::format("{}: mlp_bias is true, but models of type {} have no bias there: leave it "
                       "out",
                       source, family.model_type));
  }
}

}  // namespace

ModelConfig parse_config_json(std::string_view text, std::string_view source) {
  const Json json = parse_json(text, source);
  if (!json.is_object()) {
    throw FormatError(fmt::format("{} is not a JSON object", source), TESSERA_HERE);
  }
  const ConfigReader reader(json, source);
  ModelConfig c;
  c.model_type = reader.text("model_type", "");
  const Family& family = family_of(c.model_type, source);
  // swish is silu's other name
  if (const std::string act = reader.text("hidden_act", "silu"); act != "silu" && act != "swish") {
    refuse(fmt::format("{}: hidden_act \"{}\" is not supported (silu is)", source, act));
  }
  refuse_other_heads(json, source);
  refuse_unsupported_fields(json, source);
  refuse_dropout(json, source);
  c.vocab_size = reader.integer("vocab_size", family.vocab_size);
  c.hidden_size = reader.integer("hidden_size", kHiddenSize);
  c.intermediate_size = reader.integer("intermediate_size", family.intermediate_size);
  c.num_layers = reader.integer("num_hidden_layers", kLayers);
  c.num_heads = reader.integer("num_attention_heads", kHeads);
  // null means the same as in Python: as many as query heads, and their share of the width
  const bool every_head = reader.is_null("num_key_value_heads") ||
                          (family.num_kv_heads == 0 && !reader.has("num_key_value_heads"));
  c.num_kv_heads =
      every_head ? c.num_heads : reader.integer("num_key_value_heads", family.num_kv_heads);
  const bool shares = family.head_dim == 0 && !reader.has("head_dim");
  c.head_dim = shares ? (c.num_heads > 0 ? c.hidden_size / c.num_heads : c.hidden_size)
                      : reader.integer("head_dim", family.head_dim);
  c.qk_norm = c.model_type == "qwen3";
  read_biases(reader, family, source, c);
  c.tie_embeddings = reader.flag("tie_word_embeddings", false);
  c.rms_norm_eps = reader.real("rms_norm_eps", kRmsNormEps);
  c.initializer_range = reader.real("initializer_range", kInitializerRange);
  c.max_position = reader.integer("max_position_embeddings", family.max_position);
  read_window(reader, json, c, source);
  read_rope(reader, json, source, c);
  try {
    check(c);
  } catch (const ConfigError& error) {
    refuse(fmt::format("{}: {}", source, error.message()));
  }
  return c;
}

ModelConfig read_config_json(const std::filesystem::path& file) {
  return parse_config_json(read_whole_file(file, kLargestConfigBytes), file.string());
}

namespace {

// As transformers 4 has it beside rope_theta, and 5 reads it.
Json scaling_json(const RopeScaling& scaling) {
  Json json = {{"rope_type", rope_type_name(scaling.type)}, {"factor", scaling.factor}};
  if (scaling.type == RopeType::llama3) {
    json["low_freq_factor"] = scaling.low_freq_factor;
    json["high_freq_factor"] = scaling.high_freq_factor;
  }
  if (scaling.type == RopeType::llama3 || scaling.type == RopeType::yarn) {
    json["original_max_position_embeddings"] = scaling.original_max_position;
  }
  if (scaling.type == RopeType::yarn) {  // what differs from what transformers takes by itself
    const RopeScaling standard;
    if (scaling.beta_fast != standard.beta_fast) {
      json["beta_fast"] = scaling.beta_fast;
    }
    if (scaling.beta_slow != standard.beta_slow) {
      json["beta_slow"] = scaling.beta_slow;
    }
    if (!scaling.truncate) {
      json["truncate"] = false;
    }
    for (const auto& [key, value] : {std::pair{"attention_factor", scaling.attention_factor},
                                     std::pair{"mscale", scaling.mscale},
                                     std::pair{"mscale_all_dim", scaling.mscale_all_dim}}) {
      if (value) {
        json[key] = *value;
      }
    }
  }
  return json;
}

// Older versions of transformers read max_window_layers, newer ones layer_types.
void add_window(Json& json, const ModelConfig& c) {
  json["use_sliding_window"] = true;
  json["sliding_window"] = c.sliding_window;
  json["max_window_layers"] =
      std::find(c.sliding_layers.begin(), c.sliding_layers.end(), true) - c.sliding_layers.begin();
  Json types = Json::array();
  for (const bool slides : c.sliding_layers) {
    types.push_back(slides ? "sliding_attention" : "full_attention");
  }
  json["layer_types"] = types;
}

}  // namespace

std::string to_config_json(const ModelConfig& c) {
  Json json = {{"architectures", {family_of(c.model_type, "this model").architecture}},
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
  if (c.model_type == "mistral") {  // without the field the family's default is a window of 4096
    json["sliding_window"] = c.sliding_window > 0 ? Json(c.sliding_window) : Json();
  } else if (c.sliding_window > 0) {
    add_window(json, c);
  }
  if (c.mlp_bias) {
    json["mlp_bias"] = true;
  }
  if (c.rope.type != RopeType::none) {
    json["rope_scaling"] = scaling_json(c.rope);
  }
  return json.dump(2);
}

}  // namespace tessera
