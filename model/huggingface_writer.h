// A folder of Hugging Face's on the way out, from one process, which is there whole or not at all.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>

#include "model/huggingface_files.h"
#include "model/partial_folder.h"

namespace tessera {

/// Writes a folder of Hugging Face's: config.json, generation_config.json and the tensors, in one
/// file or in several with an index. Until `finish` all of it is in a PartialFolder.
class HuggingFaceWriter {
 public:
  /// Makes the files. Throws WriteError, also as PartialFolder does.
  HuggingFaceWriter(const std::filesystem::path& folder, const ModelConfig& config,
                    const HuggingFaceOptions& options);
  /// Where files may be added, a generation_config.json too, that come along at `finish`.
  [[nodiscard]] const std::filesystem::path& partial_folder() const noexcept {
    return place_.path();
  }
  /// As HuggingFaceFiles has them.
  [[nodiscard]] std::int64_t tensor_bytes() const noexcept { return files_.tensor_bytes(); }
  [[nodiscard]] std::int64_t bytes_of(Index elements) const noexcept {
    return files_.bytes_of(elements);
  }
  void write(std::string_view tensor, Index begin, std::span<const float> values) {
    files_.write(tensor, begin, values);
  }
  /// The folder is there, and on the disk, on return. Requires: all elements have been written.
  /// Throws WriteError.
  void finish();

 private:
  PartialFolder place_;
  HuggingFaceFiles files_;
};

}  // namespace tessera
