#include "tests/support/run/golden.h"

#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

namespace tessera::test {
namespace {

std::filesystem::path golden_folder(const std::string& variant) {
  const char* root = std::getenv("TESSERA_GOLDEN");
  if (root == nullptr) {
    throw std::runtime_error("TESSERA_GOLDEN does not name the folder tests/golden");
  }
  return std::filesystem::path(root) / variant;
}

// Names of transformers whose rows, one behind the other, make our tensor.
std::vector<std::string> hugging_face_names(const std::string& name) {
  if (name == "embedding.weight") {
    return {"model.embed_tokens.weight"};
  }
  if (name == "head.weight") {
    return {"lm_head.weight"};
  }
  if (name == "head.norm") {
    return {"model.norm.weight"};
  }
  const std::size_t dot = name.find('.', std::string("block.").size());
  const std::string layer = "model.layers." + name.substr(6, dot - 6) + ".";
  const std::string part = name.substr(dot + 1);
  if (part == "attention.norm") {
    return {layer + "input_layernorm.weight"};
  }
  if (part == "attention.qkv") {
    return {layer + "self_attn.q_proj.weight", layer + "self_attn.k_proj.weight",
            layer + "self_attn.v_proj.weight"};
  }
  if (part == "attention.q_norm") {
    return {layer + "self_attn.q_norm.weight"};
  }
  if (part == "attention.k_norm") {
    return {layer + "self_attn.k_norm.weight"};
  }
  if (part == "attention.out") {
    return {layer + "self_attn.o_proj.weight"};
  }
  if (part == "mlp.norm") {
    return {layer + "post_attention_layernorm.weight"};
  }
  if (part == "mlp.gate_up") {
    return {layer + "mlp.gate_proj.weight", layer + "mlp.up_proj.weight"};
  }
  if (part == "mlp.down") {
    return {layer + "mlp.down_proj.weight"};
  }
  throw std::runtime_error("no golden tensor for " + name);
}

}  // namespace

Golden::Golden(const std::string& variant)
    : Golden(variant, read_config_json(golden_folder(variant) / "config.json")) {}

Golden::Golden(const std::string& variant, ModelConfig config)
    : folder_(golden_folder(variant)),
      config_(std::move(config)),
      layout_(config_),
      weights_(folder_ / "model.safetensors"),
      golden_(folder_ / "golden.safetensors") {}

std::vector<float> Golden::unit_values(const SafetensorsFile& file, const std::string& prefix,
                                       UnitId unit) const {
  std::vector<float> values;
  for (const ParamTensor& tensor : layout_.unit(unit).tensors) {
    for (const std::string& name : hugging_face_names(tensor.name)) {
      const SafetensorsTensor* found = file.find(prefix + name);
      if (found == nullptr) {
        throw std::runtime_error(std::string("no golden tensor ").append(prefix).append(name));
      }
      std::vector<float> rows(static_cast<std::size_t>(found->count));
      file.read(*found, 0, std::span<float>(rows));
      values.insert(values.end(), rows.begin(), rows.end());
    }
  }
  return values;
}

std::vector<float> Golden::weights(UnitId unit) const {
  return unit_values(weights_, "", unit);
}

std::vector<float> Golden::state(const std::string& prefix, UnitId unit) const {
  return unit_values(golden_, prefix, unit);
}

std::vector<double> Golden::numbers(const std::string& key) const {
  std::ifstream in(folder_ / "golden.json");
  return nlohmann::json::parse(in).at(key).get<std::vector<double>>();
}

std::vector<std::int32_t> Golden::integers(const std::string& name) const {
  const SafetensorsTensor* found = golden_.find(name);
  if (found == nullptr) {
    throw std::runtime_error("no golden tensor " + name);
  }
  std::vector<std::int64_t> wide(static_cast<std::size_t>(found->count));
  golden_.read(*found, 0, std::span<std::int64_t>(wide));
  return {wide.begin(), wide.end()};
}

std::vector<std::int32_t> Golden::tokens() const {
  return integers("tokens");
}
std::vector<std::int32_t> Golden::targets() const {
  return integers("targets");
}

}  // namespace tessera::test
