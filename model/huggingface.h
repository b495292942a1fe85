// Hugging Face's folders (config.json and safetensors files): which of their tensors make up which
// of ours, and reading a folder with every tensor accounted for. Writing one: huggingface_files.h.
//
// A linear layer's weight is [out, in] on both sides. Theirs of q, k and v are stored one behind
// the other in our attention.qkv, gate before up in our mlp.gate_up, so that each of theirs is a
// run of elements of ours, and no element is moved on the way.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/file.h"
#include "model/model_config.h"
#include "model/param_layout.h"
#include "model/safetensors.h"

namespace tessera {

/// Names of files in such a folder: the weights, or the index of several files of them; the model;
/// how text is generated.
inline constexpr std::string_view kSingleFile = "model.safetensors";
inline constexpr std::string_view kIndexFile = "model.safetensors.index.json";
inline constexpr std::string_view kConfigFile = "config.json";
inline constexpr std::string_view kGenerationConfig = "generation_config.json";

/// A tensor of Hugging Face's, and where it is stored in one of ours.
struct HuggingFacePart {
  std::string name;  // "model.layers.3.self_attn.q_proj.weight"
  std::vector<Index> shape;
  Index offset;  // its first element within our tensor
  [[nodiscard]] Index count() const noexcept;
};

/// One of our tensors and the parts that make it up, in order and without gaps.
struct HuggingFaceTensor {
  std::string name;  // "block.3.attention.qkv"
  std::vector<HuggingFacePart> parts;
};

/// All of a model's tensors in layout order, tied ones once.
[[nodiscard]] std::vector<HuggingFaceTensor> huggingface_tensors(const ModelConfig& config,
                                                                 const ParamLayout& layout);

/// Whether the folder has weights: one safetensors file, or the index of several.
[[nodiscard]] bool has_weight_files(const std::filesystem::path& folder);

/// The safetensors file of such a folder, or those that its index names. Throws FormatError: as
/// SafetensorsFile; neither file; an index that contradicts its files.
[[nodiscard]] std::vector<SafetensorsFile> open_weight_files(const std::filesystem::path& folder);

/// A tensor and the file that has it.
struct TensorPlace {
  const SafetensorsFile* file;
  const SafetensorsTensor* tensor;
};
/// All tensors of the files, which must outlive the result. Throws FormatError for one in two of them.
[[nodiscard]] std::map<std::string, TensorPlace, std::less<>> tensors_by_name(
    std::span<const SafetensorsFile> files);

/// A folder of Hugging Face's: config.json, and model.safetensors or model.safetensors.index.json
/// with the files it names. Reading is safe from several threads.
class HuggingFaceFolder {
 public:
  /// Reads config.json and the headers of all files.
  /// Throws FormatError (see SafetensorsFile; or a tensor that is missing, unexpected, of a shape
  /// that config.json does not give, or of a type other than F32, BF16 and F16) or ConfigError (a
  /// model that tessera does not train).
  explicit HuggingFaceFolder(const std::filesystem::path& folder);

  [[nodiscard]] const ModelConfig& config() const noexcept { return config_; }
  [[nodiscard]] const ParamLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] std::size_t file_count() const noexcept { return files_.size(); }
  [[nodiscard]] const std::vector<SafetensorsFile>& files() const noexcept { return files_; }
  /// Bytes of all tensors that are read.
  [[nodiscard]] std::int64_t tensor_bytes() const noexcept { return tensor_bytes_; }

  /// Whether all of them are of type BF16.
  [[nodiscard]] bool is_bf16() const noexcept { return is_bf16_; }

  /// Fills `values` with elements [begin, begin + values.size()) of our tensor of this name,
  /// converted to f32 exactly. Throws FormatError where a file can no longer be read. Requires: a
  /// tensor of layout(), a range within it.
  void read(std::string_view tensor, Index begin, std::span<float> values) const;
  /// The same for a unit, whose tensors are as in its ParamUnit; beyond unit.count zeros (padding).
  void read_unit(UnitId unit, Index begin, std::span<float> values) const;

 private:
  // Where a part is stored.
  struct Source {
    TensorPlace place;
    Index offset;  // within our tensor
  };
  void check_tied_head(const SafetensorsFile& file, const SafetensorsTensor& head) const;

  ModelConfig config_;
  ParamLayout layout_;
  std::vector<SafetensorsFile> files_;  // not changed once sources_ refers to them
  std::map<std::string, std::vector<Source>, std::less<>> sources_;  // by our name
  std::int64_t tensor_bytes_ = 0;
  bool is_bf16_ = true;
};

}  // namespace tessera
