#include "model/peft_folder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/hash.h"
#include "kernels/base/output_file.h"
#include "model/json_text.h"
#include "model/model_config.h"
#include "model/partial_folder.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostConfigBytes = std::size_t{1} << 24U;
constexpr std::string_view kPrefix = "base_model.model.model.layers.";
constexpr Index kPiece = Index{1} << 20;  // elements that are copied at a time

// Fields that say where the adapters come from or how PEFT trains them, and change nothing of what
// they compute.
constexpr std::array<std::string_view, 19> kInert = {"peft_type",        "r",
                                                     "lora_alpha",       "target_modules",
                                                     "use_rslora",       "base_model_name_or_path",
                                                     "inference_mode",   "revision",
                                                     "task_type",        "auto_mapping",
                                                     "lora_dropout",     "loftq_config",
                                                     "peft_version",     "megatron_core",
                                                     "runtime_config",   "corda_config",
                                                     "eva_config",       "qalora_group_size",
                                                     "init_lora_weights"};

// The others must be off.
bool is_off(const Json& value) {
  return value.is_null() || value == false || (value.is_string() && value == "none") ||
         (value.is_structured() && value.empty());
}

[[noreturn]] void refuse_feature(const std::filesystem::path& file, std::string_view name,
                                 const Json& value) {
  throw ConfigError(fmt::format("{}: {} is {}, a feature of PEFT that is not supported here",
                                file.string(), name, shown_json(value)),
                    TESSERA_HERE);
}

// Those that begin as a part of the base's weights, which they change.
void check_initialization(const std::filesystem::path& file, const Json& json) {
  constexpr std::array<std::string_view, 4> kKnown = {"gaussian", "orthogonal", "eva", "default"};
  const Json value = json.value("init_lora_weights", Json(true));
  if (value.is_boolean() || value.is_null()) {
    return;
  }
  const bool is_known = value.is_string() && std::find(kKnown.begin(), kKnown.end(),
                                                       value.get<std::string>()) != kKnown.end();
  if (!is_known) {
    refuse_feature(file, "init_lora_weights", value);
  }
}

std::vector<Projection> targets_of(const std::filesystem::path& file, const Json& value) {
  if (value.is_string() && value == "all-linear") {
    return parse_projections("all", "target_modules");
  }
  if (!value.is_array()) {
    throw ConfigError(
        fmt::format("{}: target_modules is {}: regular expressions are not supported here; give a "
                    "list of names",
                    file.string(), shown_json(value)),
        TESSERA_HERE);
  }
  std::set<Projection> targets;
  for (const Json& name : value) {
    const auto& table = projection_table();
    const auto found = std::find_if(table.begin(), table.end(), [&name](const auto& row) {
      return name.is_string() && name.get<std::string>() == row.name;
    });
    if (found == table.end()) {
      throw ConfigError(
          fmt::format("{}: target_modules has {}; layers that can have an adapter here "
                      "are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and "
                      "down_proj",
                      file.string(), shown_json(name)),
          TESSERA_HERE);
    }
    targets.insert(found->projection);
  }
  if (targets.empty()) {
    throw ConfigError(fmt::format("{}: target_modules is empty", file.string()), TESSERA_HERE);
  }
  return {targets.begin(), targets.end()};
}

[[noreturn]] void refuse_file(const std::filesystem::path& file, const std::string& what) {
  throw FormatError(fmt::format("{}: {}", file.string(), what), TESSERA_HERE);
}

AdapterConfig parse_config(const std::filesystem::path& file, const Json& json) {
  const auto field = [&](const char* name) -> const Json& {
    if (!json.contains(name)) {
      refuse_file(file, fmt::format("{} is missing", name));
    }
    return json.at(name);
  };
  if (field("peft_type") != "LORA") {
    throw ConfigError(fmt::format("{}: peft_type is {}; LORA is what can be read", file.string(),
                                  shown_json(field("peft_type"))),
                      TESSERA_HERE);
  }
  for (const auto& [name, value] : json.items()) {
    if (std::find(kInert.begin(), kInert.end(), name) == kInert.end() && !is_off(value)) {
      refuse_feature(file, name, value);
    }
  }
  check_initialization(file, json);
  AdapterConfig adapters;
  const Json& rank = field("r");
  if (!rank.is_number_integer() || rank < 1 || rank > kMostAdapterRank) {
    refuse_file(file, fmt::format("r is {}; it must be a whole number from 1 to {}",
                                  shown_json(rank), kMostAdapterRank));
  }
  adapters.rank = rank.get<Index>();
  const Json& alpha = field("lora_alpha");
  if (!alpha.is_number() || !(alpha >= kLeastAdapterAlpha && alpha <= kMostAdapterAlpha)) {
    refuse_file(file, fmt::format("lora_alpha is {}; it must be a number from {} to {}",
                                  shown_json(alpha), kLeastAdapterAlpha, kMostAdapterAlpha));
  }
  adapters.alpha = alpha.get<double>();
  const Json stabilized = json.value("use_rslora", Json(false));
  if (!stabilized.is_boolean()) {
    refuse_file(file,
                fmt::format("use_rslora is {}; it must be true or false", shown_json(stabilized)));
  }
  adapters.rank_stabilized = stabilized.get<bool>();
  adapters.targets = targets_of(file, field("target_modules"));
  return adapters;
}

bool is_adapter(const ParamTensor& tensor) {
  return tensor.name.ends_with(".lora_a") || tensor.name.ends_with(".lora_b");
}

std::string config_text(const AdapterConfig& adapters, const std::string& base) {
  nlohmann::ordered_json modules = nlohmann::ordered_json::array();
  for (const Projection target : adapters.targets) {
    modules.push_back(std::string(row_of(target).name));
  }
  nlohmann::ordered_json json = {{"peft_type", "LORA"},
                                 {"task_type", "CAUSAL_LM"},
                                 {"base_model_name_or_path", base},
                                 {"revision", nullptr},
                                 {"inference_mode", true},
                                 {"r", adapters.rank},
                                 {"lora_alpha", adapters.alpha},
                                 {"lora_dropout", 0.0},
                                 {"target_modules", modules},
                                 {"bias", "none"},
                                 {"fan_in_fan_out", false},
                                 {"init_lora_weights", true},
                                 {"use_rslora", adapters.rank_stabilized},
                                 {"use_dora", false},
                                 {"modules_to_save", nullptr},
                                 {"layers_to_transform", nullptr},
                                 {"layers_pattern", nullptr},
                                 {"rank_pattern", nlohmann::ordered_json::object()},
                                 {"alpha_pattern", nlohmann::ordered_json::object()}};
  if (adapters.alpha == std::floor(adapters.alpha)) {  // as PEFT writes it
    json["lora_alpha"] = static_cast<std::int64_t>(adapters.alpha);
  }
  return json_text(json, 2) + "\n";
}

void require_adapters_alone(const AdapterLayout& layout) {
  if (layout.config().trains_embeddings) {
    throw ConfigError(
        "these adapters were trained with embedding and LM head (--train-embeddings), "
        "which PEFT keeps in modules_to_save: `convert merge` makes a whole model of "
        "them",
        TESSERA_HERE);
  }
}

constexpr const char* kBaseHash = "tessera_base_hash";
constexpr const char* kBaseDtype = "tessera_base_dtype";

std::map<std::string, std::string> metadata_of(const PeftBase& base) {
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  if (!base.hash.empty()) {
    metadata[kBaseHash] = base.hash;
  }
  if (!base.dtype.empty()) {
    metadata[kBaseDtype] = base.dtype;
  }
  return metadata;
}

std::int64_t bytes_of_elements(Index count) {
  return count * static_cast<Index>(sizeof(float));
}

// In the order of PEFT's own files.
std::map<std::string, const ParamTensor*> by_peft_name(const AdapterLayout& layout) {
  require_adapters_alone(layout);
  std::map<std::string, const ParamTensor*> all;
  for (const ParamUnit& unit : layout.params().units()) {
    for (const ParamTensor& tensor : unit.tensors) {
      all[peft_tensor_name(tensor.name)] = &tensor;
    }
  }
  return all;
}

std::vector<SafetensorsSpec> peft_specs(const AdapterLayout& layout) {
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, tensor] : by_peft_name(layout)) {
    specs.push_back({name, SafetensorsType::f32, {tensor->shape[0], tensor->shape[1]}});
  }
  return specs;
}

std::filesystem::path weights_of(const std::filesystem::path& folder) {
  if (!path_exists(folder / kPeftWeights)) {
    refuse_file(folder,
                fmt::format("there is no {}: PEFT writes it unless save_pretrained is asked "
                            "for another format, which is not read",
                            kPeftWeights));
  }
  return folder / kPeftWeights;
}

Json config_json_of(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kPeftConfig;
  if (!path_exists(file)) {
    refuse_file(folder, fmt::format("there is no {}: give a folder that PEFT or `convert export "
                                    "--adapter` wrote",
                                    kPeftConfig));
  }
  Json json = parse_json_line(read_whole_file(file, kMostConfigBytes));
  if (!json.is_object()) {
    refuse_file(file, "not a JSON object");
  }
  return json;
}

}  // namespace

bool is_peft_folder(const std::filesystem::path& folder) {
  return is_folder(folder) && path_exists(folder / kPeftConfig);
}

void require_no_peft_folder(const std::filesystem::path& folder, std::string_view name) {
  if (is_peft_folder(folder)) {
    throw ConfigError(fmt::format("{} holds PEFT's adapters, not a model: `convert merge` makes a "
                                  "model of them and their base, and train --init-adapter "
                                  "continues from them",
                                  name),
                      TESSERA_HERE);
  }
}

AdapterConfig read_peft_config(const std::filesystem::path& folder) {
  return parse_config(folder / kPeftConfig, config_json_of(folder));
}

PeftBase read_peft_base(const std::filesystem::path& folder) {
  const Json json = config_json_of(folder);
  const SafetensorsFile file(weights_of(folder));
  const auto text = [&](const char* name) {
    const auto found = file.metadata().find(name);
    return found == file.metadata().end() ? std::string() : found->second;
  };
  const auto name = json.find("base_model_name_or_path");
  return {
      .name = name != json.end() && name->is_string() ? name->get<std::string>() : std::string(),
      .hash = text(kBaseHash),
      .dtype = text(kBaseDtype)};
}

std::string peft_tensor_name(std::string_view tensor) {
  const std::size_t dot = tensor.find('.');
  const std::string_view layer = tensor.substr(dot + 1, tensor.find('.', dot + 1) - dot - 1);
  const std::string_view rest = tensor.substr(dot + 2 + layer.size());
  for (const ProjectionRow& row : projection_table()) {
    if (rest.starts_with(row.suffix) && rest.substr(row.suffix.size()).starts_with(".lora_")) {
      return fmt::format("{}{}.{}.lora_{}.weight", kPrefix, layer, row.module,
                         rest.back() == 'a' ? 'A' : 'B');
    }
  }
  throw ContractError("not an adapter's tensor: " + std::string(tensor), TESSERA_HERE);
}

PeftFolder::PeftFolder(const std::filesystem::path& folder, const AdapterLayout& layout)
    : layout_(layout), file_(weights_of(folder)) {
  std::size_t found = 0;
  for (const ParamUnit& unit : layout.params().units()) {
    for (const ParamTensor& tensor : unit.tensors) {
      if (!is_adapter(tensor)) {
        continue;
      }
      const std::string name = peft_tensor_name(tensor.name);
      const SafetensorsTensor* const theirs = file_.find(name);
      if (theirs == nullptr) {
        refuse_file(file_.path(), fmt::format("{} is missing", printable(name)));
      }
      const std::vector<Index> shape = {tensor.shape[0], tensor.shape[1]};
      if (theirs->shape != shape) {
        refuse_file(file_.path(),
                    fmt::format("{} is {}; for this model and r it must be {}", printable(name),
                                shape_text(theirs->shape), shape_text(shape)));
      }
      if (theirs->type != SafetensorsType::f32 && theirs->type != SafetensorsType::bf16 &&
          theirs->type != SafetensorsType::f16) {
        refuse_file(file_.path(), fmt::format("{} is of type {}; F32, BF16 and F16 are read",
                                              printable(name), type_name(theirs->type)));
      }
      tensors_[tensor.name] = theirs;
      ++found;
    }
  }
  if (found != file_.tensors().size()) {
    for (const SafetensorsTensor& tensor : file_.tensors()) {
      const bool is_known =
          std::any_of(tensors_.begin(), tensors_.end(),
                      [&tensor](const auto& known) { return known.second->name == tensor.name; });
      if (!is_known) {
        refuse_file(file_.path(), fmt::format("{} is not an adapter's of the layers that "
                                              "target_modules names in this model",
                                              printable(tensor.name)));
      }
    }
  }
}

void PeftFolder::read_unit(UnitId unit, Index begin, std::span<float> values) const {
  std::fill(values.begin(), values.end(), 0.0F);
  for_each_tensor(
      layout_.params().unit(unit), begin, begin + std::ssize(values),
      [&](const ParamTensor& tensor, Index first, Index last) {
        const SafetensorsTensor& theirs = *tensors_.at(tensor.name);
        const std::span<float> part = values.subspan(static_cast<std::size_t>(first - begin),
                                                     static_cast<std::size_t>(last - first));
        file_.read(theirs, first - tensor.offset, part);
        if (!std::ranges::all_of(part, [](float x) { return std::isfinite(x); })) {
          refuse_file(file_.path(), fmt::format("{} has numbers that are not finite: give adapters "
                                                "of an earlier step",
                                                printable(theirs.name)));
        }
      });
}

std::uint64_t PeftFolder::content_hash() const {
  Xxh3 hash;
  std::vector<float> values;
  for (const auto& [name, tensor] : tensors_) {
    hash.add(name);
    for (Index begin = 0; begin < tensor->count; begin += kPiece) {
      values.resize(static_cast<std::size_t>(std::min(kPiece, tensor->count - begin)));
      file_.read(*tensor, begin, values);
      hash.add(std::as_bytes(std::span(values)));
    }
  }
  return hash.digest64();
}

std::string PeftFolder::base_hash() const {
  const auto found = file_.metadata().find(kBaseHash);
  return found == file_.metadata().end() ? std::string() : found->second;
}

void PeftFolder::require_base(const std::string& hash, const std::string& base) const {
  const std::string named = base_hash();
  if (!named.empty() && named != hash) {
    throw ConfigError(
        fmt::format("{} holds adapters of another base (hash {}) than {} (hash {}): "
                    "give the base that they were trained with",
                    file_.path().parent_path().string(), printable(named), base, hash),
        TESSERA_HERE);
  }
}

PeftFiles::PeftFiles(std::filesystem::path folder, const AdapterLayout& layout, PeftBase base,
                     SafetensorsShare share)
    : folder_(std::move(folder)),
      layout_(layout),
      base_(std::move(base)),
      writer_(folder_ / kPeftWeights, peft_specs(layout), metadata_of(base_), share) {
  for (const auto& [name, tensor] : by_peft_name(layout)) {
    offsets_[tensor->name] = tensor_bytes_;
    tensor_bytes_ += bytes_of_elements(tensor->count());
  }
}

void PeftFiles::write_unit(UnitId unit, Index begin, std::span<const float> values) {
  for_each_tensor(layout_.params().unit(unit), begin, begin + std::ssize(values),
                  [&](const ParamTensor& tensor, Index first, Index last) {
                    const auto piece = values.subspan(static_cast<std::size_t>(first - begin),
                                                      static_cast<std::size_t>(last - first));
                    writer_.write(
                        offsets_.at(tensor.name) + bytes_of_elements(first - tensor.offset),
                        std::as_bytes(piece));
                    written_bytes_ += static_cast<std::int64_t>(piece.size_bytes());
                  });
}

void PeftFiles::write_config() const {
  write_whole_file(folder_ / kPeftConfig, bytes_of(config_text(layout_.config(), base_.name)));
}

void create_peft_files(const std::filesystem::path& folder, const AdapterLayout& layout,
                       const PeftBase& base) {
  create_safetensors(folder / kPeftWeights, peft_specs(layout), metadata_of(base));
}

void write_peft_folder(const std::filesystem::path& folder, const AdapterLayout& layout,
                       const PeftBase& base, const UnitValues& values) {
  require_adapters_alone(layout);
  PartialFolder place(folder);
  PeftFiles files(place.path(), layout, base, SafetensorsShare::whole);
  std::vector<float> piece;
  for (UnitId unit = 0; unit < layout.params().unit_count(); ++unit) {
    const Index count = layout.params().unit(unit).count;
    for (Index begin = 0; begin < count; begin += kPiece) {
      piece.resize(static_cast<std::size_t>(std::min(kPiece, count - begin)));
      values(unit, begin, piece);
      files.write_unit(unit, begin, piece);
    }
  }
  files.close();
  files.write_config();
  place.finish(kPeftConfig);
}

}  // namespace tessera
