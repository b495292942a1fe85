#include "model/huggingface.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/input_file.h"
#include "kernels/device/tensor_view.h"
#include "model/json_text.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kHead = "lm_head.weight";
constexpr std::int64_t kLargestIndexBytes = std::int64_t{64} << 20U;
// Each stays open; far above what a model comes in, far below what a process may have open.
constexpr std::size_t kMostFiles = 512;
constexpr Index kPieceElements = Index{1} << 20;  // compared at a time

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& message) {
  throw FormatError(fmt::format("{}: {}", file.string(), message), TESSERA_HERE);
}

// Puts parts one behind the other; their names share a prefix.
class PartList {
 public:
  PartList(std::string name, std::string prefix)
      : tensor_{std::move(name), {}}, prefix_(std::move(prefix)) {}

  PartList& add(std::string_view suffix, std::vector<Index> shape) {
    tensor_.parts.push_back({fmt::format("{}{}", prefix_, suffix), std::move(shape), offset_});
    offset_ += tensor_.parts.back().count();
    return *this;
  }
  [[nodiscard]] HuggingFaceTensor take() { return std::move(tensor_); }

 private:
  HuggingFaceTensor tensor_;
  std::string prefix_;
  Index offset_ = 0;
};

HuggingFaceTensor block_tensor(const ModelConfig& c, Index layer, const std::string& name,
                               std::string_view suffix) {
  PartList parts(name, fmt::format("model.layers.{}.", layer));
  const Index q = c.query_width();
  const Index kv = c.num_kv_heads * c.head_dim;
  if (suffix == "attention.norm") {
    parts.add("input_layernorm.weight", {c.hidden_size});
  } else if (suffix == "attention.qkv") {
    parts.add("self_attn.q_proj.weight", {q, c.hidden_size})
        .add("self_attn.k_proj.weight", {kv, c.hidden_size})
        .add("self_attn.v_proj.weight", {kv, c.hidden_size});
  } else if (suffix == "attention.qkv_bias") {
    parts.add("self_attn.q_proj.bias", {q})
        .add("self_attn.k_proj.bias", {kv})
        .add("self_attn.v_proj.bias", {kv});
  } else if (suffix == "attention.q_norm") {
    parts.add("self_attn.q_norm.weight", {c.head_dim});
  } else if (suffix == "attention.k_norm") {
    parts.add("self_attn.k_norm.weight", {c.head_dim});
  } else if (suffix == "attention.out") {
    parts.add("self_attn.o_proj.weight", {c.hidden_size, q});
  } else if (suffix == "attention.out_bias") {
    parts.add("self_attn.o_proj.bias", {c.hidden_size});
  } else if (suffix == "mlp.norm") {
    parts.add("post_attention_layernorm.weight", {c.hidden_size});
  } else if (suffix == "mlp.gate_up") {
    parts.add("mlp.gate_proj.weight", {c.intermediate_size, c.hidden_size})
        .add("mlp.up_proj.weight", {c.intermediate_size, c.hidden_size});
  } else if (suffix == "mlp.gate_up_bias") {
    parts.add("mlp.gate_proj.bias", {c.intermediate_size})
        .add("mlp.up_proj.bias", {c.intermediate_size});
  } else if (suffix == "mlp.down") {
    parts.add("mlp.down_proj.weight", {c.hidden_size, c.intermediate_size});
  } else if (suffix == "mlp.down_bias") {
    parts.add("mlp.down_proj.bias", {c.hidden_size});
  }
  return parts.take();
}

HuggingFaceTensor outer_tensor(const ModelConfig& c, const std::string& name) {
  PartList parts(name, "");
  if (name == "embedding.weight") {
    parts.add("model.embed_tokens.weight", {c.vocab_size, c.hidden_size});
  } else if (name == "head.norm") {
    parts.add("model.norm.weight", {c.hidden_size});
  } else if (name == "head.weight") {
    parts.add(kHead, {c.vocab_size, c.hidden_size});
  }
  return parts.take();
}

// Tables that old files of Llama hold and that follow from config.json.
bool is_derived(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq");
}

Json read_json(const std::filesystem::path& file, std::int64_t most_bytes) {
  Json json = parse_json(read_whole_file(file, most_bytes), file.string());
  if (!json.is_object()) {
    refuse(file, "it is not a JSON object");
  }
  return json;
}

// Which file holds which tensor, as the index says. File names must not lead out of the folder.
std::map<std::string, std::string> read_index(const std::filesystem::path& file) {
  const Json json = read_json(file, kLargestIndexBytes);
  const auto found = json.find("weight_map");
  if (found == json.end() || !found->is_object()) {
    refuse(file, "it has no \"weight_map\"");
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, value] : found->items()) {
    if (!value.is_string()) {
      refuse(file, fmt::format("the file of tensor {} is not a string", printable(tensor)));
    }
    const auto name = value.get<std::string>();
    if (!name.ends_with(".safetensors") || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      refuse(file,
             fmt::format("{} is not the name of a safetensors file beside it", printable(name)));
    }
    files.emplace(tensor, name);
  }
  return files;
}

}  // namespace

Index HuggingFacePart::count() const noexcept {
  Index product = 1;
  for (const Index extent : shape) {
    product *= extent;
  }
  return product;
}

std::vector<HuggingFaceTensor> huggingface_tensors(const ModelConfig& config,
                                                   const ParamLayout& layout) {
  std::vector<HuggingFaceTensor> tensors;
  for (UnitId id = 0; id < layout.unit_count(); ++id) {
    const ParamUnit& unit = layout.unit(id);
    const bool is_block = id > 0 && id < layout.head();
    for (const ParamTensor& ours : unit.tensors) {
      HuggingFaceTensor tensor =
          is_block ? block_tensor(config, id - 1, ours.name,
                                  std::string_view(ours.name).substr(unit.name.size() + 1))
                   : outer_tensor(config, ours.name);
      Index count = 0;
      for (const HuggingFacePart& each : tensor.parts) {
        count += each.count();
      }
      TESSERA_REQUIRE(count == ours.count(), "Hugging Face's tensors make up " + ours.name);
      tensors.push_back(std::move(tensor));
    }
  }
  return tensors;
}

namespace {

ModelConfig read_folder_config(const std::filesystem::path& folder) {
  require_folder(folder, "config.json and the weights");
  return read_config_json(folder / kConfigFile);
}

// Weights in a form that is not read: ", but pytorch_model.bin: ...".
std::string other_weights(const std::filesystem::path& folder) {
  constexpr std::array kEndings = {".bin", ".pt",      ".pth",  ".ckpt", ".gguf", ".ggml",
                                   ".h5",  ".msgpack", ".onnx", ".zip",  ".tar",  ".gz"};
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string ending = entry.path().extension().string();
    if (std::find(kEndings.begin(), kEndings.end(), ending) != kEndings.end()) {
      return fmt::format(", but {}: load it with transformers and save it again with "
                         "save_pretrained, which writes safetensors",
                         printable(entry.path().filename().string()));
    }
  }
  return {};
}

}  // namespace

bool has_weight_files(const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::filesystem::exists(folder / kSingleFile, ignored) ||
         std::filesystem::exists(folder / kIndexFile, ignored);
}

std::vector<SafetensorsFile> open_weight_files(const std::filesystem::path& folder) {
  std::vector<SafetensorsFile> files;
  if (entry_exists(folder / kSingleFile)) {
    files.emplace_back(folder / kSingleFile);
    return files;
  }
  const std::filesystem::path index = folder / kIndexFile;
  if (!entry_exists(index)) {
    refuse(folder, fmt::format("it holds neither {} nor {}{}", kSingleFile, kIndexFile,
                               other_weights(folder)));
  }
  const std::map<std::string, std::string> weight_map = read_index(index);
  std::set<std::string> names;
  for (const auto& [tensor, file] : weight_map) {
    names.insert(file);
  }
  if (names.size() > kMostFiles) {
    refuse(index, fmt::format("it names {} files, more than {}", names.size(), kMostFiles));
  }
  std::size_t tensors_found = 0;
  for (const std::string& name : names) {
    if (!entry_exists(folder / name)) {
      refuse(index, fmt::format("it names {}, which is not in the folder: copy or download it too",
                                printable(name)));
    }
    const SafetensorsFile& file = files.emplace_back(folder / name);
    for (const SafetensorsTensor& tensor : file.tensors()) {
      const auto entry = weight_map.find(tensor.name);
      if (entry == weight_map.end() || entry->second != name) {
        refuse(index, fmt::format("it does not say that {} holds tensor {}", printable(name),
                                  printable(tensor.name)));
      }
      ++tensors_found;
    }
  }
  if (tensors_found == weight_map.size()) {
    return files;
  }
  for (const auto& entry : weight_map) {
    const std::filesystem::path path = folder / entry.second;
    const auto file =
        std::find_if(files.begin(), files.end(),
                     [&path](const SafetensorsFile& each) { return each.path() == path; });
    if (file->find(entry.first) == nullptr) {
      refuse(index, fmt::format("{} does not hold tensor {}", printable(entry.second),
                                printable(entry.first)));
    }
  }
  return files;
}

std::map<std::string, TensorPlace, std::less<>> tensors_by_name(
    std::span<const SafetensorsFile> files) {
  std::map<std::string, TensorPlace, std::less<>> found;
  for (const SafetensorsFile& file : files) {
    for (const SafetensorsTensor& tensor : file.tensors()) {
      const auto [place, is_new] = found.emplace(tensor.name, TensorPlace{&file, &tensor});
      if (!is_new) {
        refuse(file.path(), fmt::format("tensor {} stands in {} too", printable(tensor.name),
                                        place->second.file->path().string()));
      }
    }
  }
  return found;
}

HuggingFaceFolder::HuggingFaceFolder(const std::filesystem::path& folder)
    : config_(read_folder_config(folder)), layout_(config_), files_(open_weight_files(folder)) {
  std::map<std::string, TensorPlace, std::less<>> found = tensors_by_name(files_);
  for (const HuggingFaceTensor& ours : huggingface_tensors(config_, layout_)) {
    std::vector<Source>& sources = sources_[ours.name];
    for (const HuggingFacePart& part : ours.parts) {
      const auto entry = found.find(part.name);
      if (entry == found.end()) {
        refuse(folder, fmt::format("tensor '{}' is missing", part.name));
      }
      const auto [file, tensor] = entry->second;
      if (tensor->shape != part.shape) {
        refuse(file->path(),
               fmt::format("tensor '{}' has the shape {}, where config.json gives {}", part.name,
                           shape_text(tensor->shape), shape_text(part.shape)));
      }
      if (tensor->type != SafetensorsType::f32 && tensor->type != SafetensorsType::bf16 &&
          tensor->type != SafetensorsType::f16) {
        refuse(file->path(),
               fmt::format("tensor '{}' is of type {}, where F32, BF16 or F16 is needed", part.name,
                           type_name(tensor->type)));
      }
      sources.push_back({entry->second, part.offset});
      is_bf16_ = is_bf16_ && tensor->type == SafetensorsType::bf16;
      tensor_bytes_ += tensor->count * static_cast<Index>(size_in_bytes(tensor->type));
      found.erase(entry);
    }
  }
  for (const auto& [name, place] : found) {
    if (name == kHead && layout_.is_tied()) {
      check_tied_head(*place.file, *place.tensor);
    } else if (!is_derived(name)) {
      refuse(place.file->path(), fmt::format("tensor {} belongs to no {} model of this config.json",
                                             printable(name), config_.model_type));
    }
  }
}

// A tied head may be stored once more, if it says the same.
void HuggingFaceFolder::check_tied_head(const SafetensorsFile& file,
                                        const SafetensorsTensor& head) const {
  const ParamTensor& embedding = layout_.find("embedding.weight");
  bool is_same = head.shape == std::vector<Index>{config_.vocab_size, config_.hidden_size};
  std::vector<float> stored(static_cast<std::size_t>(std::min(kPieceElements, embedding.count())));
  std::vector<float> tied(stored.size());
  for (Index begin = 0; is_same && begin < head.count; begin += kPieceElements) {
    const auto count = static_cast<std::size_t>(std::min(kPieceElements, head.count - begin));
    file.read(head, begin, std::span(stored).first(count));
    read("embedding.weight", begin, std::span(tied).first(count));
    is_same = std::memcmp(stored.data(), tied.data(), count * sizeof(float)) == 0;
  }
  if (!is_same) {
    refuse(file.path(),
           "lm_head.weight is not the embedding, although config.json says tie_word_embeddings");
  }
}

void HuggingFaceFolder::read(std::string_view tensor, Index begin, std::span<float> values) const {
  const auto entry = sources_.find(tensor);
  TESSERA_REQUIRE(entry != sources_.end(), "a tensor of the layout");
  for (const Source& source : entry->second) {
    const Index skipped = begin - source.offset;
    const auto [file, stored] = source.place;
    if (values.empty() || skipped >= stored->count) {
      continue;
    }
    TESSERA_REQUIRE(skipped >= 0, "a range within the tensor");
    const auto count = static_cast<std::size_t>(
        std::min(stored->count - skipped, static_cast<Index>(values.size())));
    file->read(*stored, skipped, values.first(count));
    begin += static_cast<Index>(count);
    values = values.subspan(count);
  }
  TESSERA_REQUIRE(values.empty(), "a range within the tensor");
}

void HuggingFaceFolder::read_unit(UnitId unit, Index begin, std::span<float> values) const {
  const Index end = begin + std::ssize(values);
  for_each_tensor(layout_.unit(unit), begin, end,
                  [&](const ParamTensor& tensor, Index first, Index last) {
                    read(tensor.name, first - tensor.offset,
                         values.subspan(static_cast<std::size_t>(first - begin),
                                        static_cast<std::size_t>(last - first)));
                  });
  const Index padding = std::clamp<Index>(end - layout_.unit(unit).count, 0, end - begin);
  std::ranges::fill(values.last(static_cast<std::size_t>(padding)), 0.0F);
}

}  // namespace tessera
