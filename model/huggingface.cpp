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

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kHead = "lm_head.weight";
constexpr std::int64_t kLargestIndexBytes = std::int64_t{64} << 20U;
// Each stays open; far above what a model comes in, far below what a process may have open.
constexpr std::size_t kMostFiles = 512;
constexpr Index kPieceElements = Index{1} << 20;     // compared at a time
constexpr std::size_t kRoundedElements = 1U << 16U;  // written at a time, from the stack

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
  return read_config_json(folder / "config.json");
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

HuggingFaceFolder::HuggingFaceFolder(const std::filesystem::path& folder)
    : config_(read_folder_config(folder)), layout_(config_) {
  open_files(folder);

  std::map<std::string_view, std::pair<std::size_t, const SafetensorsTensor*>> found;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    for (const SafetensorsTensor& tensor : files_[i].tensors()) {
      const auto [place, is_new] = found.emplace(tensor.name, std::pair(i, &tensor));
      if (!is_new) {
        refuse(files_[i].path(), fmt::format("tensor {} stands in {} too", printable(tensor.name),
                                             files_[place->second.first].path().string()));
      }
    }
  }
  for (const HuggingFaceTensor& ours : huggingface_tensors(config_, layout_)) {
    std::vector<Source>& sources = sources_[ours.name];
    for (const HuggingFacePart& part : ours.parts) {
      const auto entry = found.find(part.name);
      if (entry == found.end()) {
        refuse(folder, fmt::format("tensor '{}' is missing", part.name));
      }
      const auto [file, tensor] = entry->second;
      if (tensor->shape != part.shape) {
        refuse(files_[file].path(),
               fmt::format("tensor '{}' has the shape {}, where config.json gives {}", part.name,
                           shape_text(tensor->shape), shape_text(part.shape)));
      }
      if (tensor->type != SafetensorsType::f32 && tensor->type != SafetensorsType::bf16 &&
          tensor->type != SafetensorsType::f16) {
        refuse(files_[file].path(),
               fmt::format("tensor '{}' is of type {}, where F32, BF16 or F16 is needed", part.name,
                           type_name(tensor->type)));
      }
      sources.push_back({file, tensor, part.offset});
      tensor_bytes_ += tensor->count * static_cast<Index>(size_in_bytes(tensor->type));
      found.erase(entry);
    }
  }
  for (const auto& [name, place] : found) {
    const SafetensorsFile& file = files_[place.first];
    if (name == kHead && layout_.is_tied()) {
      check_tied_head(file, *place.second);
    } else if (!is_derived(name)) {
      refuse(file.path(), fmt::format("tensor {} belongs to no {} model of this config.json",
                                      printable(name), config_.model_type));
    }
  }
}

void HuggingFaceFolder::open_files(const std::filesystem::path& folder) {
  if (entry_exists(folder / kSingleFile)) {
    files_.emplace_back(folder / kSingleFile);
    return;
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
    const SafetensorsFile& file = files_.emplace_back(folder / name);
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
    return;
  }
  for (const auto& entry : weight_map) {
    const std::filesystem::path path = folder / entry.second;
    const auto file =
        std::find_if(files_.begin(), files_.end(),
                     [&path](const SafetensorsFile& each) { return each.path() == path; });
    if (file->find(entry.first) == nullptr) {
      refuse(index, fmt::format("{} does not hold tensor {}", printable(entry.second),
                                printable(entry.first)));
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
    if (values.empty() || skipped >= source.tensor->count) {
      continue;
    }
    TESSERA_REQUIRE(skipped >= 0, "a range within the tensor");
    const auto count = static_cast<std::size_t>(
        std::min(source.tensor->count - skipped, static_cast<Index>(values.size())));
    files_[source.file].read(*source.tensor, skipped, values.first(count));
    begin += static_cast<Index>(count);
    values = values.subspan(count);
  }
  TESSERA_REQUIRE(values.empty(), "a range within the tensor");
}

void HuggingFaceFolder::read_unit(UnitId unit, Index begin, std::span<float> values) const {
  for (const ParamTensor& tensor : layout_.unit(unit).tensors) {
    const Index skipped = begin - tensor.offset;
    if (values.empty() || skipped >= tensor.count()) {
      continue;
    }
    const auto count = static_cast<std::size_t>(
        std::min(tensor.count() - skipped, static_cast<Index>(values.size())));
    read(tensor.name, skipped, values.first(count));
    begin += static_cast<Index>(count);
    values = values.subspan(count);
  }
  std::fill(values.begin(), values.end(), 0.0F);
}

namespace {

// A tensor to write, and where its elements come from.
struct Outgoing {
  SafetensorsSpec spec;
  std::string ours;
  Index offset;  // within ours
  std::int64_t bytes;
};

// Fills files up to max_bytes, in order.
std::vector<std::vector<Outgoing>> cut_into_files(const ModelConfig& config,
                                                  const HuggingFaceOptions& options) {
  const auto width = static_cast<Index>(size_in_bytes(options.type));
  std::vector<std::vector<Outgoing>> files(1);
  std::int64_t used = 0;
  for (HuggingFaceTensor& tensor : huggingface_tensors(config, ParamLayout(config))) {
    for (HuggingFacePart& part : tensor.parts) {
      const std::int64_t bytes = part.count() * width;
      if (used > 0 && used + bytes > options.max_shard_bytes) {
        files.emplace_back();
        used = 0;
      }
      used += bytes;
      files.back().push_back({{std::move(part.name), options.type, std::move(part.shape)},
                              tensor.name,
                              part.offset,
                              bytes});
    }
  }
  return files;
}

void write_text(const std::filesystem::path& file, const std::string& text) {
  write_whole_file(file, std::as_bytes(std::span(text)));
}

std::string config_text(const ModelConfig& config, SafetensorsType type) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(to_config_json(config));
  // The name before transformers 5, which it still reads.
  json["torch_dtype"] = type == SafetensorsType::bf16 ? "bfloat16" : "float32";
  return json.dump(2) + "\n";
}

// Names a folder of ours that is not finished, so that no other is taken for one and removed.
constexpr std::string_view kPartialMark = ".tessera-export";
// What an empty folder may hold: an export under way, and what a new file system begins with.
constexpr std::string_view kInnerPartial = ".partial";
constexpr std::string_view kLostAndFound = "lost+found";
constexpr std::string_view kConfig = "config.json";

// Whether there is nothing of the user's in it.
bool is_empty_folder(const std::filesystem::path& folder) {
  const std::vector<std::filesystem::path> entries = list_folder(folder);
  return std::all_of(entries.begin(), entries.end(), [](const std::filesystem::path& entry) {
    return entry.filename() == kInnerPartial || entry.filename() == kLostAndFound;
  });
}

// `folder` with links followed, if it is empty or not there.
std::filesystem::path new_or_empty_folder(const std::filesystem::path& folder) {
  const auto refuse = [&folder](std::string_view why) {
    throw WriteError(fmt::format("{} {}: give another folder", folder.string(), why), TESSERA_HERE);
  };
  std::error_code error;
  const auto status = std::filesystem::status(folder, error);
  if (!std::filesystem::exists(status)) {
    if (std::filesystem::is_symlink(std::filesystem::symlink_status(folder, error))) {
      refuse("is a link to a place that is not there");
    }
    return folder;
  }
  if (!std::filesystem::is_directory(status)) {
    refuse("exists and is not a folder");
  }
  if (!is_empty_folder(folder)) {
    refuse("exists and is not empty");
  }
  const std::filesystem::path real = std::filesystem::canonical(folder, error);
  return error ? folder : real;
}

// Whether nobody else has the lock; true too where the file system has none.
bool is_free(File& mark) {
  try {
    return mark.try_lock();
  } catch (const WriteError&) {
    return true;
  }
}

// Beside a folder that is not there, which a rename makes whole at once. Within one that is: it may
// be a mount point, or in a folder that is not writable.
std::filesystem::path partial_of(const std::filesystem::path& folder) {
  if (output_exists(folder)) {
    return folder / kInnerPartial;
  }
  std::filesystem::path partial = folder;
  partial += ".partial";
  return partial;
}

// Makes the partial folder anew, with its mark, whose lock says for as long as it is open that the
// export is under way. What a killed export left there is removed; a folder of the user's of that
// name is not, nor one that another process writes.
File make_partial_folder(const std::filesystem::path& partial,
                         const std::filesystem::path& folder) {
  const auto refuse = [&](std::string_view why) {
    throw WriteError(
        fmt::format("{} is needed to write {}, but {}", partial.string(), folder.string(), why),
        TESSERA_HERE);
  };
  constexpr std::string_view kBusy =
      "another export is writing there: wait for its end, or give another folder";
  std::error_code error;
  File left;  // what a killed export left: kept locked until it is gone
  if (std::filesystem::exists(partial / kPartialMark, error)) {
    left = File::open_or_create(partial / kPartialMark);
    if (!is_free(left)) {
      refuse(kBusy);
    }
  } else if (std::filesystem::exists(std::filesystem::symlink_status(partial, error)) &&
             !(std::filesystem::is_directory(partial, error) &&
               std::filesystem::is_empty(partial, error))) {
    refuse("exists and is not an unfinished export: remove it or give another folder");
  }
  std::filesystem::remove_all(partial, error);
  std::filesystem::create_directories(partial.parent_path(), error);
  if (!std::filesystem::create_directory(partial, error)) {
    refuse(error ? "cannot be made: " + error.message() : std::string(kBusy));
  }
  File mark = File::create(partial / kPartialMark);
  if (!is_free(mark)) {
    refuse(kBusy);
  }
  return mark;
}

}  // namespace

HuggingFaceWriter::HuggingFaceWriter(const std::filesystem::path& folder, ModelConfig config,
                                     const HuggingFaceOptions& options)
    : config_(std::move(config)),
      options_(options),
      folder_(folder.has_filename() ? folder : folder.parent_path()) {  // without a last slash
  TESSERA_REQUIRE(options.type == SafetensorsType::bf16 || options.type == SafetensorsType::f32,
                  "bf16 or f32");
  TESSERA_REQUIRE(options.max_shard_bytes > 0, "a size above 0");
  folder_ = new_or_empty_folder(folder_);
  const std::filesystem::path partial = partial_of(folder_);
  mark_ = make_partial_folder(partial, folder_);
  partial_ = partial;
  std::error_code error;
  try {
    make_files();
  } catch (...) {
    std::filesystem::remove_all(partial_, error);
    throw;
  }
}

HuggingFaceWriter::~HuggingFaceWriter() {
  if (!partial_.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(partial_, ignored);
  }
}

void HuggingFaceWriter::make_files() {
  const std::vector<std::vector<Outgoing>> files = cut_into_files(config_, options_);
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string name =
        files.size() == 1 ? std::string(kSingleFile)
                          : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
    std::vector<SafetensorsSpec> specs;
    for (const Outgoing& tensor : files[i]) {
      specs.push_back(tensor.spec);
      weight_map_.emplace_back(tensor.spec.name, name);
    }
    files_.push_back(std::make_unique<SafetensorsWriter>(
        partial_ / name, specs, std::map<std::string, std::string>{{"format", "pt"}}));
    std::int64_t file_offset = 0;
    for (const Outgoing& tensor : files[i]) {
      parts_[tensor.ours].push_back(
          {tensor.offset, tensor.bytes / bytes_of(1), files_.back().get(), file_offset});
      file_offset += tensor.bytes;
    }
    tensor_bytes_ += file_offset;
  }
}

void HuggingFaceWriter::write(std::string_view tensor, Index begin, std::span<const float> values) {
  const auto entry = parts_.find(tensor);
  TESSERA_REQUIRE(entry != parts_.end(), "a tensor of the layout");
  const Index end = begin + static_cast<Index>(values.size());
  Index covered = 0;
  for (const Part& part : entry->second) {
    const Index from = std::max(begin, part.offset);
    const Index to = std::min(end, part.offset + part.count);
    if (from < to) {
      write_part(part, from - part.offset,
                 values.subspan(static_cast<std::size_t>(from - begin),
                                static_cast<std::size_t>(to - from)));
      covered += to - from;
    }
  }
  TESSERA_REQUIRE(covered == end - begin, "a range within the tensor");
}

void HuggingFaceWriter::write_part(const Part& part, Index begin,
                                   std::span<const float> values) const {
  std::int64_t offset = part.file_offset + bytes_of(begin);
  if (options_.type == SafetensorsType::f32) {
    part.file->write(offset, std::as_bytes(values));
    return;
  }
  std::array<BFloat16, kRoundedElements> rounded;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  while (!values.empty()) {
    const auto piece = values.first(std::min(values.size(), rounded.size()));
    std::transform(piece.begin(), piece.end(), rounded.begin(),
                   [](float value) { return to_bfloat16(value); });
    const auto bytes = std::as_bytes(std::span(rounded).first(piece.size()));
    part.file->write(offset, bytes);
    offset += static_cast<std::int64_t>(bytes.size());
    values = values.subspan(piece.size());
  }
}

void HuggingFaceWriter::finish() {
  for (const auto& file : files_) {
    file->close();
  }
  if (files_.size() > 1) {
    Json weight_map = Json::object();
    for (const auto& [tensor, file] : weight_map_) {
      weight_map[tensor] = file;
    }
    const Json index = {{"metadata", {{"total_size", tensor_bytes_}}}, {"weight_map", weight_map}};
    write_text(partial_ / kIndexFile, index.dump(2) + "\n");
  }
  write_text(partial_ / kConfig, config_text(config_, options_.type));
  const std::filesystem::path generation = partial_ / "generation_config.json";
  if (!output_exists(generation)) {
    write_text(generation, "{\n  \"_from_model_config\": true\n}\n");
  }
  sync_folder(partial_);
  if (partial_.filename() == kInnerPartial) {
    move_into_folder();
    return;
  }
  std::error_code error;
  std::filesystem::rename(partial_, folder_, error);
  if (error) {
    throw WriteError(fmt::format("cannot rename {} to {}: {}", partial_.string(), folder_.string(),
                                 error.message()),
                     TESSERA_HERE);
  }
  std::filesystem::remove(folder_ / kPartialMark, error);
  partial_.clear();
  sync_folder(folder_.has_parent_path() ? folder_.parent_path() : std::filesystem::path("."));
}

// config.json comes last: without it nobody takes the folder for a model.
void HuggingFaceWriter::move_into_folder() {
  std::vector<std::filesystem::path> files = list_folder(partial_);
  std::erase(files, partial_ / kPartialMark);
  std::stable_partition(files.begin(), files.end(), [](const std::filesystem::path& file) {
    return file.filename() != kConfig;
  });
  std::vector<std::filesystem::path> moved;
  std::error_code error;
  try {
    for (const std::filesystem::path& file : files) {
      rename_to_new(file, folder_ / file.filename());
      moved.push_back(folder_ / file.filename());
    }
    sync_folder(folder_);
  } catch (...) {
    for (const std::filesystem::path& file : moved) {
      std::filesystem::remove(file, error);
    }
    throw;
  }
  std::filesystem::remove_all(partial_, error);
  partial_.clear();
}

}  // namespace tessera
