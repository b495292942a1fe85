// The files of a Hugging Face model on the way out: config.json and the tensors, in one safetensors
// file or in several with an index. Which files there are, and where in them each element is
// stored, follows from the model and the options alone, so that several processes can write one set
// of files, each the elements that it has.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/export_files.h"
#include "model/model_config.h"
#include "model/param_layout.h"
#include "model/safetensors.h"

namespace tessera {

struct HuggingFaceOptions {
  SafetensorsType type = SafetensorsType::bf16;  // or f32
  std::int64_t max_shard_bytes = 5'000'000'000;  // of tensors in one file, as in transformers
};

/// Name of file `number`, from 0, of so many.
[[nodiscard]] std::string weight_file_name(std::size_t number, std::size_t files);
/// Of a weight file, as transformers writes it for PyTorch's tensors.
[[nodiscard]] std::map<std::string, std::string> weight_file_metadata();
/// The type's name in PyTorch and config.json. Requires: f32 or bf16.
[[nodiscard]] const char* torch_type(SafetensorsType type);

/// Which file each tensor of a folder is in, by their names there.
struct WeightIndex {
  std::size_t files = 1;
  std::int64_t tensor_bytes = 0;
  const std::map<std::string, std::string>& file_of;
};
/// Writes `config` as config.json, the index where there are several files, and a generation_config.json
/// that says nothing where there is none yet. Throws WriteError.
void write_folder_texts(const std::filesystem::path& folder, std::string_view config,
                        const WeightIndex& index);

/// Makes the files of the tensors in `folder`, with their headers and room for all elements, for
/// processes that then write parts of them. Throws WriteError.
void create_huggingface_files(const std::filesystem::path& folder, const ModelConfig& config,
                              const HuggingFaceOptions& options);

class HuggingFaceFiles final : public ExportFiles {
 public:
  /// `whole`: makes the files; `part`: opens those that `create_huggingface_files` made for the same
  /// model and options. A tensor larger than max_shard_bytes has a file of its own. Throws
  /// WriteError.
  HuggingFaceFiles(std::filesystem::path folder, ModelConfig config,
                   const HuggingFaceOptions& options, SafetensorsShare share);

  [[nodiscard]] std::int64_t tensor_bytes() const override { return tensor_bytes_; }
  [[nodiscard]] std::int64_t written_bytes() const override { return written_bytes_; }
  [[nodiscard]] std::int64_t bytes_of(Index elements) const noexcept {
    return elements * static_cast<Index>(size_in_bytes(options_.type));
  }

  /// Writes elements [begin, begin + values.size()) of our tensor of this name, rounded to nearest
  /// even where the type is bf16. In any order, from any thread, each element once. Throws
  /// WriteError.
  void write(std::string_view tensor, Index begin, std::span<const float> values);
  void write_unit(UnitId unit, Index begin, std::span<const float> values) override;
  /// Requires, of whole files: all elements have been written.
  void close() override;
  /// Writes config.json, the index where there are several files, and a generation_config.json that
  /// says nothing where there is none yet. Throws WriteError.
  void write_config() const override;

 private:
  // A run of elements of one of our tensors, and its file.
  struct Part {
    Index offset;  // its first element within our tensor
    Index count;
    SafetensorsWriter* file;
    std::int64_t file_offset;  // bytes, among the file's tensors
  };
  void write_part(const Part& part, Index begin, std::span<const float> values) const;

  std::filesystem::path folder_;
  ModelConfig config_;
  HuggingFaceOptions options_;
  ParamLayout layout_;
  std::vector<std::unique_ptr<SafetensorsWriter>> files_;
  std::map<std::string, std::string> weight_map_;                // tensor to file name
  std::map<std::string, std::vector<Part>, std::less<>> parts_;  // by our name
  std::int64_t tensor_bytes_ = 0;
  std::atomic<std::int64_t> written_bytes_ = 0;
};

}  // namespace tessera
