// config.json against transformers' own classes: every field of theirs has our default, or does not
// matter for training, or is refused where it says something else.
#include "model/model_config.h"

#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// By version and family; of tests/interop/config_defaults.py.
Json golden_defaults() {
  const char* golden = std::getenv("TESSERA_GOLDEN");
  BOOST_REQUIRE_MESSAGE(golden != nullptr, "TESSERA_GOLDEN names the folder of golden files");
  std::ifstream in(std::filesystem::path(golden) / "config_defaults.json");
  return Json::parse(in);
}

ModelConfig parse(const Json& json) {
  return parse_config_json(json.dump(), "config.json");
}

// Empty: accepted.
std::string complaint(const Json& json) {
  try {
    (void)parse(json);
    return {};
  } catch (const ConfigError& error) {
    return error.message();
  } catch (const FormatError& error) {
    return error.message();
  }
}

void expect_in(const std::string& text, const std::string& part) {
  BOOST_TEST(text.find(part) != std::string::npos, "'" << text << "' lacks '" << part << "'");
}

// A file that says as little as it may.
Json minimal(const std::string& family) {
  Json json = {{"model_type", family}};
  if (family == "mistral") {
    json["sliding_window"] = nullptr;  // else it slides
  }
  return json;
}

const std::set<std::string> kFamilies = {"qwen3", "qwen2", "llama", "mistral"};

// Fields that a ModelConfig has, as transformers says them.
const std::map<std::string, std::function<Json(const ModelConfig&)>>& read_fields() {
  static const std::map<std::string, std::function<Json(const ModelConfig&)>> fields = {
      {"model_type", [](const ModelConfig& c) { return Json(c.model_type); }},
      {"vocab_size", [](const ModelConfig& c) { return Json(c.vocab_size); }},
      {"hidden_size", [](const ModelConfig& c) { return Json(c.hidden_size); }},
      {"intermediate_size", [](const ModelConfig& c) { return Json(c.intermediate_size); }},
      {"num_hidden_layers", [](const ModelConfig& c) { return Json(c.num_layers); }},
      {"num_attention_heads", [](const ModelConfig& c) { return Json(c.num_heads); }},
      {"num_key_value_heads", [](const ModelConfig& c) { return Json(c.num_kv_heads); }},
      {"head_dim", [](const ModelConfig& c) { return Json(c.head_dim); }},
      {"attention_bias", [](const ModelConfig& c) { return Json(c.attention_bias); }},
      {"mlp_bias", [](const ModelConfig& c) { return Json(c.mlp_bias); }},
      {"tie_word_embeddings", [](const ModelConfig& c) { return Json(c.tie_embeddings); }},
      {"rope_theta", [](const ModelConfig& c) { return Json(c.rope_theta); }},
      {"rms_norm_eps", [](const ModelConfig& c) { return Json(c.rms_norm_eps); }},
      {"initializer_range", [](const ModelConfig& c) { return Json(c.initializer_range); }},
      {"max_position_embeddings", [](const ModelConfig& c) { return Json(c.max_position); }},
      {"rope_scaling", [](const ModelConfig& c) { return c.rope.factor == 1 ? Json() : Json(1); }},
      {"rope_parameters",
       [](const ModelConfig& c) {
         return Json{{"rope_theta", c.rope_theta}, {"rope_type", "default"}};
       }},
  };
  return fields;
}

// Fields of sliding windows, which are read together: one value each that makes another model.
const std::map<std::string, Json>& window_fields() {
  static const std::map<std::string, Json> values = {
      {"use_sliding_window", true},
      {"sliding_window", 4096},
      {"max_window_layers", 3},
      {"layer_types", {"full_attention", "sliding_attention"}}};
  return values;
}

// Fields whose other values are refused: one such value each, and those that every model has.
const std::map<std::string, Json>& refused_values() {
  static const std::map<std::string, Json> values = {
      {"hidden_act", "gelu"},
      {"attention_dropout", 0.1},
      {"pruned_heads", {{"0", {1}}}},
      {"is_encoder_decoder", true},
      {"add_cross_attention", true},
      {"tie_encoder_decoder", true},
      {"cross_attention_hidden_size", 64},
      {"architectures", {"LlamaForSequenceClassification"}},
  };
  return values;
}

// Fields that change neither weights nor losses of these models.
const std::set<std::string>& other_fields() {
  static const std::set<std::string> fields = {
      // what is returned, how it is computed or stored
      "return_dict", "output_hidden_states", "output_attentions", "torchscript", "dtype",
      "use_cache", "chunk_size_feed_forward", "pretraining_tp", "use_bfloat16", "tf_legacy_loss",
      "is_decoder",
      // classifiers and their labels
      "finetuning_task", "id2label", "label2id", "task_specific_params", "problem_type",
      // the tokenizer's and generation's
      "tokenizer_class", "prefix", "bos_token_id", "pad_token_id", "eos_token_id", "sep_token_id",
      "decoder_start_token_id", "max_length", "min_length", "do_sample", "early_stopping",
      "num_beams", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty",
      "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
      "num_return_sequences", "output_scores", "return_dict_in_generate", "forced_bos_token_id",
      "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
      "suppress_tokens", "begin_suppress_tokens", "num_beam_groups", "diversity_penalty"};
  return fields;
}

BOOST_AUTO_TEST_SUITE(model_config)

BOOST_AUTO_TEST_CASE(a_field_left_out_has_the_default_of_transformers_4_and_5) {
  const Json golden = golden_defaults();
  BOOST_TEST(golden.size() == 2U);
  for (const auto& [version, families] : golden.items()) {
    BOOST_TEST(families.size() == kFamilies.size());
    for (const auto& [family, fields] : families.items()) {
      const ModelConfig ours = parse(minimal(family));
      for (const auto& [field, value] : fields.items()) {
        BOOST_TEST_CONTEXT(family << " of transformers " << version << ": " << field) {
          if (const auto read = read_fields().find(field); read != read_fields().end()) {
            const bool follows = field == "head_dim" && value.is_null();  // from other sizes
            const Json expected = follows ? Json(ours.hidden_size / ours.num_heads) : value;
            BOOST_TEST(read->second(ours).dump() == expected.dump());
          } else {
            BOOST_TEST(refused_values().contains(field) + other_fields().contains(field) +
                           window_fields().contains(field) ==
                       1);
          }
        }
      }
    }
  }
}

// What transformers writes of a default model (save_pretrained) is the model of a minimal file.
BOOST_AUTO_TEST_CASE(a_file_that_says_all_defaults_equals_one_that_says_none) {
  const Json versions = golden_defaults();  // items() refers to it
  for (const auto& [version, families] : versions.items()) {
    for (const auto& [family, fields] : families.items()) {
      Json all = fields;
      if (family == "mistral") {
        BOOST_TEST(all.at("sliding_window") == 4096);
        BOOST_TEST(parse(all).sliding_window == 4096);
        all["sliding_window"] = nullptr;
      }
      BOOST_TEST_CONTEXT(family << " of transformers " << version) {
        BOOST_TEST(complaint(all) == "");
        BOOST_TEST((parse(all) == parse(minimal(family))));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_field_that_would_change_results_is_refused) {
  for (const std::string& family : kFamilies) {
    for (const auto& [field, value] : refused_values()) {
      Json json = minimal(family);
      json[field] = value;
      BOOST_TEST(!complaint(json).empty(), family << ": " << field << " is passed over");
    }
    for (const auto& [field, value] : window_fields()) {
      Json json = minimal(family);
      if (family == "mistral" && field != "sliding_window") {
        continue;  // which has all of its layers slide, or none
      }
      if (field == "max_window_layers") {
        json["use_sliding_window"] = true;
      }
      if (field == "sliding_window" && family != "mistral") {
        json["use_sliding_window"] = true;
      }
      json[field] = value;
      BOOST_TEST((!complaint(json).empty() || !(parse(json) == parse(minimal(family)))),
                 family << ": " << field << " is passed over");
    }
  }
  const std::map<std::string, Json> others = {{"quantization_config", {{"bits", 4}}},
                                              {"is_causal", false},
                                              {"partial_rotary_factor", 0.5},
                                              {"rope_interleaved", true},
                                              {"no_rope_layers", {1, 0}},
                                              {"attention_chunk_size", 128},
                                              {"attn_logit_softcapping", 50.0},
                                              {"final_logit_softcapping", 30.0},
                                              {"logits_scaling", 8.0},
                                              {"embedding_multiplier", 12.0},
                                              {"residual_multiplier", 0.22},
                                              {"attention_multiplier", 0.1},
                                              {"clip_qkv", 8},
                                              {"num_experts", 8},
                                              {"num_local_experts", 8},
                                              {"qk_layernorm", true}};
  for (const auto& [field, value] : others) {
    Json json = minimal("llama");
    json[field] = value;
    expect_in(complaint(json), field);
    json[field] = nullptr;
    BOOST_TEST(complaint(json) == "", field);
  }
}

BOOST_AUTO_TEST_CASE(dropout_of_any_name_is_refused) {
  for (const std::string field : {"attention_dropout", "hidden_dropout", "resid_pdrop",
                                  "embd_pdrop", "dropout", "hidden_dropout_prob", "layerdrop"}) {
    Json json = minimal("llama");
    json[field] = 0.1;
    expect_in(complaint(json), field + " is 0.1: training with dropout is not supported");
    json[field] = "0.1";
    expect_in(complaint(json), "is not a number");
    for (const Json& none : {Json(0), Json(0.0), Json(), Json(false)}) {
      json[field] = none;
      BOOST_TEST(complaint(json) == "");
    }
  }
}

BOOST_AUTO_TEST_CASE(a_null_is_what_it_is_in_python) {
  for (const std::string& family : kFamilies) {
    Json json = minimal(family);
    json["num_key_value_heads"] = nullptr;
    BOOST_TEST(parse(json).num_kv_heads == 32);
    for (const std::string field :
         {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
          "num_attention_heads", "rms_norm_eps", "initializer_range", "max_position_embeddings"}) {
      json = minimal(family);
      json[field] = nullptr;
      expect_in(complaint(json), "\"" + field + "\" is null");
    }
    json = minimal(family);
    json["head_dim"] = nullptr;
    expect_in(complaint(json) + "accepted",
              family == "qwen3" ? "\"head_dim\" is null" : "accepted");
  }
}

BOOST_AUTO_TEST_CASE(a_window_that_no_layer_has_is_full_attention) {
  for (const std::string family : {"qwen2", "qwen3"}) {
    Json json = minimal(family);
    json["use_sliding_window"] = true;
    json["sliding_window"] = 1024;
    json["max_window_layers"] = 32;
    BOOST_TEST((parse(json) == parse(minimal(family))));
    json["max_window_layers"] = 31;
    json["layer_types"] = std::vector<std::string>(32, "full_attention");
    BOOST_TEST((parse(json) == parse(minimal(family))));
    json.erase("layer_types");
    json["sliding_window"] = nullptr;
    BOOST_TEST((parse(json) == parse(minimal(family))));
  }
}

// Layers that see a window only, as each family says it, in and out.
BOOST_AUTO_TEST_CASE(sliding_windows_go_both_ways) {
  const auto first_sliding = [](const ModelConfig& config) {
    const auto& layers = config.sliding_layers;
    return std::find(layers.begin(), layers.end(), true) - layers.begin();
  };
  for (const std::string family : {"qwen2", "qwen3"}) {
    Json json = minimal(family);
    json["use_sliding_window"] = true;
    ModelConfig config = parse(json);  // transformers' defaults: 4096 in layers 28 to 31
    BOOST_TEST(config.sliding_window == 4096);
    BOOST_TEST(first_sliding(config) == 28);
    BOOST_TEST(config.window_of(27) == 0);
    BOOST_TEST(config.window_of(28) == 4096);
    json["sliding_window"] = 1024;
    json["max_window_layers"] = 3;
    BOOST_TEST((parse_config_json(to_config_json(parse(json)), "c") == parse(json)));
    json["layer_types"] = std::vector<std::string>(32, "full_attention");
    json["layer_types"][5] = "sliding_attention";  // wins over max_window_layers
    config = parse(json);
    BOOST_TEST(config.window_of(5) == 1024);
    BOOST_TEST(config.window_of(6) == 0);
    BOOST_TEST((parse_config_json(to_config_json(config), "c") == config));
    json["layer_types"][6] = "chunked_attention";
    expect_in(complaint(json), "layer_types has \"chunked_attention\", which is not supported");
    json["layer_types"] = {"sliding_attention"};
    expect_in(complaint(json), "layer_types has 1 entries for 32 layers");
    json["layer_types"] = std::vector<std::string>(32, "sliding_attention");
    json["use_sliding_window"] = false;
    expect_in(complaint(json), "without use_sliding_window and sliding_window");
  }
  Json json = minimal("mistral");
  json.erase("sliding_window");
  const ModelConfig mistral = parse(json);  // the family's default
  BOOST_TEST(mistral.window_of(0) == 4096);
  BOOST_TEST(mistral.window_of(31) == 4096);
  BOOST_TEST((parse_config_json(to_config_json(mistral), "c") == mistral));
  json["sliding_window"] = 0;
  expect_in(complaint(json), "sliding_window is 0");
  json["sliding_window"] = -1;
  expect_in(complaint(json), "\"sliding_window\" is not an integer between 0");
  Json llama = minimal("llama");
  llama["use_sliding_window"] = true;
  llama["sliding_window"] = 16;
  expect_in(complaint(llama), "sliding-window attention is not supported in a llama");
}

BOOST_AUTO_TEST_CASE(a_window_takes_its_share_of_the_work) {
  ModelConfig config = parse(minimal("qwen3"));
  const double full = flops_per_token(config, 8192);
  config.sliding_window = 8192;
  config.sliding_layers.assign(static_cast<std::size_t>(config.num_layers), true);
  BOOST_TEST(flops_per_token(config, 8192) == full);
  config.sliding_window = 4096;
  // rows 0 to 4095 see up to 4096 keys, the others 4096: 3/4 of the pairs
  const double attention =
      6.0 * static_cast<double>(config.num_layers * config.query_width()) * 8192;
  BOOST_TEST(flops_per_token(config, 8192) == full - attention / 4,
             boost::test_tools::tolerance(1e-12));
}

// Every type is read from both places, written, and read again as the same model.
BOOST_AUTO_TEST_CASE(every_rope_type_goes_both_ways) {
  const std::vector<Json> scalings = {
      {{"rope_type", "linear"}, {"factor", 2.0}},
      {{"type", "dynamic"}, {"factor", 4.0}},
      {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}},
      {{"rope_type", "yarn"}, {"factor", 2.0}},
      {{"rope_type", "yarn"},
       {"factor", 40.0},
       {"original_max_position_embeddings", 4096},
       {"beta_fast", 16.0},
       {"beta_slow", 2},
       {"truncate", false},
       {"mscale", 0.7},
       {"mscale_all_dim", 0.5}},
      {{"rope_type", "yarn"}, {"factor", 1.0}, {"attention_factor", 1.25}},
      {{"rope_type", "llama3"},
       {"factor", 8.0},
       {"low_freq_factor", 1.0},
       {"high_freq_factor", 4.0},
       {"original_max_position_embeddings", 8192}}};
  for (const Json& scaling : scalings) {
    BOOST_TEST_CONTEXT(scaling.dump()) {
      Json four = minimal("qwen3");
      four["rope_theta"] = 5e5;
      four["max_position_embeddings"] = 40960;
      four["rope_scaling"] = scaling;
      Json five = minimal("qwen3");
      five["max_position_embeddings"] = 40960;
      five["rope_parameters"] = scaling;
      five["rope_parameters"]["rope_theta"] = 5e5;
      const ModelConfig config = parse(four);
      BOOST_TEST((config.rope.type != RopeType::none));
      BOOST_TEST((parse(five) == config));
      BOOST_TEST((parse_config_json(to_config_json(config), "again") == config));
      for (const auto& [key, value] : scaling.items()) {
        if (key == "beta_fast" || key == "mscale" || key == "factor") {
          Json other = four;
          other["rope_scaling"][key] = value.get<double>() * 2;
          BOOST_TEST(!(parse(other) == config), key);
        }
      }
    }
  }
  Json json = minimal("qwen3");
  json["max_position_embeddings"] = 131072;
  json["rope_scaling"] = {{"rope_type", "yarn"}, {"original_max_position_embeddings", 32768}};
  BOOST_TEST(parse(json).rope.factor == 4);  // as transformers 5
  json["rope_scaling"] = {{"rope_type", "linear"}};
  expect_in(complaint(json), "factor");
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", -2.0}};
  expect_in(complaint(json), "config.json: linear rope scaling needs a factor above 0, not -2");
  json["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 2.0}, {"beta_fast", 1.0}};
  expect_in(complaint(json), "yarn rope scaling needs 0 < beta_slow < beta_fast");
  json["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 0.5}};
  expect_in(complaint(json), "a factor of at least 1, not 0.5");
}

// Which of two places counts depends on the version of transformers: they must say the same.
BOOST_AUTO_TEST_CASE(rope_scaling_and_rope_parameters_agree_or_are_refused) {
  const Json scaled = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  Json json = minimal("llama");
  json["rope_theta"] = 5e5;
  json["rope_scaling"] = scaled;
  const ModelConfig expected = parse(json);
  BOOST_TEST(expected.rope.factor == 8);
  BOOST_TEST(expected.rope_theta == 5e5);

  Json both = json;
  both["rope_parameters"] = scaled;
  both["rope_parameters"]["rope_theta"] = 5e5;
  BOOST_TEST((parse(both) == expected));
  both.erase("rope_theta");  // as transformers 5 writes it
  BOOST_TEST((parse(both) == expected));
  both["rope_theta"] = 1e4;
  expect_in(complaint(both), "rope_theta is 10000 and 500000 of rope_parameters");
  both["rope_theta"] = 5e5;
  both["rope_scaling"]["factor"] = 32.0;
  expect_in(complaint(both), "they disagree");
  both["rope_scaling"] = Json::object();
  BOOST_TEST((parse(both) == expected));
  both["rope_scaling"] = scaled;
  both["rope_parameters"] = {{"rope_theta", 5e5}, {"rope_type", "default"}};
  expect_in(complaint(both), "they disagree");

  json["rope_scaling"]["rope_theta"] = 1e6;
  expect_in(complaint(json), "rope_theta is 500000 and 1000000 of rope_scaling");
  json["rope_scaling"].erase("rope_theta");
  json["rope_scaling"]["type"] = "linear";
  expect_in(complaint(json), "remove one of them");
  json["rope_scaling"].erase("type");
  json["original_max_position_embeddings"] = 4096;
  expect_in(complaint(json), "original_max_position_embeddings is 4096");
  json.erase("original_max_position_embeddings");
  json["rope_scaling"]["alpha"] = 32;
  expect_in(complaint(json), "\"alpha\" in rope_scaling is not supported");
  for (const std::string type : {"longrope", "su", "mrope"}) {
    json["rope_scaling"] = {{"rope_type", type}, {"factor", 2.0}};
    expect_in(complaint(json), "rope_type \"" + type + "\" is not supported");
  }
}

BOOST_AUTO_TEST_CASE(biases_are_where_the_family_has_them) {
  Json json = minimal("llama");
  json["attention_bias"] = true;
  ModelConfig config = parse(json);
  BOOST_TEST((config.attention_bias && config.attention_out_bias && !config.mlp_bias));
  json["mlp_bias"] = true;
  config = parse(json);
  BOOST_TEST(config.mlp_bias);
  BOOST_TEST((parse_config_json(to_config_json(config), "copy") == config));
  BOOST_TEST(parameter_count(config) == parameter_count(parse(minimal("llama"))) +
                                            Index{32} * (3 * 4096 + 4096 + 2 * 11008 + 4096));

  json = minimal("qwen3");
  json["attention_bias"] = true;
  BOOST_TEST(parse(json).attention_out_bias);
  const ModelConfig qwen2 = parse(minimal("qwen2"));
  BOOST_TEST((qwen2.attention_bias && !qwen2.attention_out_bias));
  json = minimal("qwen2");
  json["attention_bias"] = false;
  expect_in(complaint(json), "models of type qwen2 have a bias on q, k and v always");
  json = minimal("mistral");
  json["attention_bias"] = true;
  expect_in(complaint(json), "models of type mistral have no biases");
  for (const std::string family : {"qwen2", "qwen3", "mistral"}) {
    json = minimal(family);
    json["mlp_bias"] = true;
    expect_in(complaint(json), "models of type " + family + " have no bias there");
  }
  // The output for files of models without these biases stays as it was, byte for byte.
  BOOST_TEST(to_config_json(qwen2).find("mlp_bias") == std::string::npos);
}

BOOST_AUTO_TEST_CASE(bytes_after_the_end_are_refused) {
  const std::string text = minimal("llama").dump();
  const auto reported = [](const std::string& all) {
    try {
      (void)parse_config_json(all, "x/config.json");
      return std::string();
    } catch (const FormatError& error) {
      return error.message();
    }
  };
  using namespace std::string_literals;
  BOOST_TEST(reported(text + " \n\t") == "");
  for (const std::string& more : {"{}"s, "x"s, "\0"s, "\0\0\0garbage"s, "\n}"s}) {
    expect_in(reported(text + more), "x/config.json is not JSON: ");
  }
  expect_in(reported(text + "{}"), "its JSON text ends, and more text follows");
  expect_in(reported(""), "x/config.json is not JSON: it is empty");
  expect_in(reported("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
            "x/config.json is a pointer of git-lfs, not the file itself");
  expect_in(reported("<!DOCTYPE html>"), "x/config.json is a web page");
}

BOOST_AUTO_TEST_CASE(a_value_that_makes_no_model_is_named_with_its_file) {
  Json json = minimal("qwen3");
  json["head_dim"] = 31;
  BOOST_TEST(complaint(json) == "config.json: head_dim 31 is odd: rotary embedding needs pairs");
  json["head_dim"] = 32;
  json["rope_theta"] = -1.0;
  BOOST_TEST(complaint(json) == "config.json: rope_theta is -1: it must be above 0");
}

BOOST_AUTO_TEST_SUITE_END()

// As model.safetensors of these models say.
BOOST_AUTO_TEST_CASE(presets_have_the_published_numbers_of_parameters) {
  const std::map<std::string, Index> counts = {
      {"qwen2.5-0.5b", 494'032'768},   {"qwen2.5-1.5b", 1'543'714'304},
      {"qwen2.5-3b", 3'085'938'688},   {"qwen2.5-7b", 7'615'616'512},
      {"qwen3-0.6b", 596'049'920},     {"qwen3-1.7b", 1'720'574'976},
      {"qwen3-4b", 4'022'468'096},     {"qwen3-8b", 8'190'735'360},
      {"qwen3-14b", 14'768'307'200},   {"qwen3-32b", 32'762'123'264},
      {"qwen2.5-14b", 14'770'033'664}, {"qwen2.5-32b", 32'763'876'352},
      {"llama3.1-8b", 8'030'261'248},  {"llama3.1-70b", 70'553'706'496},
  };
  for (const std::string& name : preset_names()) {
    if (name.starts_with("qwen") || name.starts_with("llama")) {
      BOOST_TEST_CONTEXT(name) {
        BOOST_CHECK_EQUAL(parameter_count(preset(name)), counts.at(name));
      }
    }
  }
}

}  // namespace
}  // namespace tessera
