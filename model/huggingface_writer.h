// A folder of Hugging Face's on the way out, from one process, which is there whole or not at all.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/base/file.h"
#include "model/huggingface_files.h"

namespace tessera {

/// Writes a folder of Hugging Face's: config.json, generation_config.json and the tensors, in one
/// file or in several with an index. Until `finish` all of it is in a partial folder, so that half
/// of one is never taken for a whole one: FOLDER.partial, or FOLDER/.partial where FOLDER exists.
class HuggingFaceWriter {
 public:
  /// Makes the files. Throws WriteError, also if `folder` exists and is not empty.
  HuggingFaceWriter(const std::filesystem::path& folder, const ModelConfig& config,
                    const HuggingFaceOptions& options);
  /// Without `finish` leaves nothing behind.
  ~HuggingFaceWriter();
  HuggingFaceWriter(const HuggingFaceWriter&) = delete;
  HuggingFaceWriter& operator=(const HuggingFaceWriter&) = delete;

  /// Where files may be added, a generation_config.json too, that come along at `finish`.
  [[nodiscard]] const std::filesystem::path& partial_folder() const noexcept { return partial_; }
  /// As HuggingFaceFiles has them.
  [[nodiscard]] std::int64_t tensor_bytes() const noexcept { return files_->tensor_bytes(); }
  [[nodiscard]] std::int64_t bytes_of(Index elements) const noexcept {
    return files_->bytes_of(elements);
  }
  void write(std::string_view tensor, Index begin, std::span<const float> values) {
    files_->write(tensor, begin, values);
  }
  /// The folder is there, and on the disk, on return. Requires: all elements have been written.
  /// Throws WriteError.
  void finish();

 private:
  void move_into_folder();

  std::filesystem::path folder_;
  File mark_;                      // of the partial folder, locked until it has its name
  std::filesystem::path partial_;  // until `finish`; empty after it
  std::unique_ptr<HuggingFaceFiles> files_;
};

}  // namespace tessera
