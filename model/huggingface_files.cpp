#include "model/huggingface_files.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/hash.h"
#include "kernels/device/tensor_view.h"
#include "model/huggingface.h"

namespace tessera {
namespace {

constexpr std::size_t kRoundedElements = 1U << 16U;  // written at a time, from the stack

// A tensor to write, and where its elements come from.
struct Outgoing {
  SafetensorsSpec spec;
  std::string ours;
  Index offset;  // within ours
  std::int64_t bytes;
};

struct OutgoingFile {
  std::string name;
  std::vector<Outgoing> tensors;
  [[nodiscard]] std::vector<SafetensorsSpec> specs() const {
    std::vector<SafetensorsSpec> all;
    all.reserve(tensors.size());
    for (const Outgoing& tensor : tensors) {
      all.push_back(tensor.spec);
    }
    return all;
  }
};

// Fills files up to max_shard_bytes, in order.
std::vector<OutgoingFile> outgoing_files(const ModelConfig& config, const ParamLayout& layout,
                                         const HuggingFaceOptions& options) {
  TESSERA_REQUIRE(options.type == SafetensorsType::bf16 || options.type == SafetensorsType::f32,
                  "bf16 or f32");
  TESSERA_REQUIRE(options.max_shard_bytes > 0, "a size above 0");
  const auto width = static_cast<Index>(size_in_bytes(options.type));
  std::vector<OutgoingFile> files(1);
  std::int64_t used = 0;
  for (HuggingFaceTensor& tensor : huggingface_tensors(config, layout)) {
    for (HuggingFacePart& part : tensor.parts) {
      const std::int64_t bytes = part.count() * width;
      if (used > 0 && used + bytes > options.max_shard_bytes) {
        files.emplace_back();
        used = 0;
      }
      used += bytes;
      files.back().tensors.push_back({{std::move(part.name), options.type, std::move(part.shape)},
                                      tensor.name,
                                      part.offset,
                                      bytes});
    }
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    files[i].name = weight_file_name(i, files.size());
  }
  return files;
}

void write_text(const std::filesystem::path& file, std::string_view text) {
  write_whole_file(file, bytes_of(text));
}

constexpr std::size_t kMostGenerationConfig = std::size_t{1} << 20U;

// A config.json with the ids of special tokens that generation_config.json has: some programs look for
// them there alone.
std::string with_special_tokens(std::string_view config, std::string_view generation) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(config);
  const nlohmann::ordered_json ids = nlohmann::ordered_json::parse(generation, nullptr, false);
  if (!ids.is_object()) {
    return std::string(config);
  }
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (ids.contains(key) && !json.contains(key)) {
      json[key] = ids.at(key);
    }
  }
  return json.dump(2) + "\n";
}

std::string config_text(const ModelConfig& config, SafetensorsType type) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(to_config_json(config));
  // The name before transformers 5, which it still reads.
  json["torch_dtype"] = torch_type(type);
  return json.dump(2) + "\n";
}

}  // namespace

std::map<std::string, std::string> weight_file_metadata() {
  return {{"format", "pt"}};
}

const char* torch_type(SafetensorsType type) {
  return type == SafetensorsType::bf16 ? "bfloat16" : "float32";
}

void write_folder_texts(const std::filesystem::path& folder, std::string_view config,
                        const WeightIndex& index) {
  if (index.files > 1) {
    const nlohmann::json json = {{"metadata", {{"total_size", index.tensor_bytes}}},
                                 {"weight_map", index.file_of}};
    write_text(folder / kIndexFile, json.dump(2) + "\n");
  }
  const std::filesystem::path generation = folder / kGenerationConfig;
  if (output_exists(generation)) {
    write_text(folder / kConfigFile,
               with_special_tokens(config, read_whole_file(generation, kMostGenerationConfig)));
    return;
  }
  write_text(folder / kConfigFile, config);
  write_text(generation, "{\n  \"_from_model_config\": true\n}\n");
}

std::string weight_file_name(std::size_t number, std::size_t files) {
  return files == 1 ? std::string(kSingleFile)
                    : fmt::format("model-{:05}-of-{:05}.safetensors", number + 1, files);
}

void create_huggingface_files(const std::filesystem::path& folder, const ModelConfig& config,
                              const HuggingFaceOptions& options) {
  for (const OutgoingFile& file : outgoing_files(config, ParamLayout(config), options)) {
    create_safetensors(folder / file.name, file.specs(), weight_file_metadata());
  }
}

HuggingFaceFiles::HuggingFaceFiles(std::filesystem::path folder, ModelConfig config,
                                   const HuggingFaceOptions& options, SafetensorsShare share)
    : folder_(std::move(folder)), config_(std::move(config)), options_(options), layout_(config_) {
  for (const OutgoingFile& file : outgoing_files(config_, layout_, options_)) {
    files_.push_back(std::make_unique<SafetensorsWriter>(folder_ / file.name, file.specs(),
                                                         weight_file_metadata(), share));
    std::int64_t file_offset = 0;
    for (const Outgoing& tensor : file.tensors) {
      weight_map_.emplace(tensor.spec.name, file.name);
      parts_[tensor.ours].push_back(
          {tensor.offset, tensor.bytes / bytes_of(1), files_.back().get(), file_offset});
      file_offset += tensor.bytes;
    }
    tensor_bytes_ += file_offset;
  }
}

void HuggingFaceFiles::write(std::string_view tensor, Index begin, std::span<const float> values) {
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
  written_bytes_ += bytes_of(covered);
}

void HuggingFaceFiles::write_unit(UnitId unit, Index begin, std::span<const float> values) {
  const Index end = begin + std::ssize(values);
  TESSERA_REQUIRE(begin >= 0 && end <= layout_.unit(unit).count, "a range within the unit");
  for_each_tensor(layout_.unit(unit), begin, end,
                  [&](const ParamTensor& tensor, Index first, Index last) {
                    write(tensor.name, first - tensor.offset,
                          values.subspan(static_cast<std::size_t>(first - begin),
                                         static_cast<std::size_t>(last - first)));
                  });
}

void HuggingFaceFiles::write_part(const Part& part, Index begin,
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

void HuggingFaceFiles::close() {
  for (const auto& file : files_) {
    file->close();
  }
}

void HuggingFaceFiles::write_config() const {
  write_folder_texts(folder_, config_text(config_, options_.type),
                     {files_.size(), tensor_bytes_, weight_map_});
}

}  // namespace tessera
