// A model's weights, and adapters beside it, from whatever folder has them: for programs of one process.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#include "model/adapter_layout.h"
#include "model/huggingface.h"
#include "model/nf4_files.h"
#include "model/param_values.h"
#include "runtime/checkpoint/reader.h"

namespace tessera {

/// Whether these are a checkpoint's adapters, and not a whole model.
[[nodiscard]] inline bool holds_adapters(const ManifestInfo& info) {
  return !info.adapter_json.empty();
}

/// Throws FormatError where parameters of the step are not finite.
void require_finite(const CheckpointReader& reader);

/// A whole model. Reading is safe from several threads.
class ModelSource {
 public:
  /// `source`: a Hugging Face folder, also one with matrices in nf4, a step, or a run, whose newest
  /// complete step is taken. `option` names it in messages. Throws FormatError, ConfigError (adapters, not a model).
  ModelSource(const std::filesystem::path& source, std::string_view option);

  [[nodiscard]] const ModelConfig& config() const noexcept { return config_; }
  [[nodiscard]] const ParamLayout& layout() const noexcept { return layout_; }
  /// Whether bf16 holds every value of it without loss, as far as the kind of its files says.
  [[nodiscard]] bool is_bf16() const noexcept { return huggingface_ && huggingface_->is_bf16(); }
  /// Whether its matrices are in nf4.
  [[nodiscard]] bool is_packed() const noexcept { return packed_ != nullptr; }
  /// Where its tokenizer may lie.
  [[nodiscard]] const std::filesystem::path& folder() const noexcept { return folder_; }
  /// Fills elements begin, begin + 1, ... of a unit; beyond its count zeros. Matrices in nf4 are
  /// widened. Throws FormatError.
  void read(UnitId unit, Index begin, std::span<float> values) const;
  [[nodiscard]] UnitValues values() const;  // refers to this object
  /// By which checkpoints of adapters name it: content_hash, of a model in nf4 that of the model it was
  /// made of where the folder says it. Reads all of it else. Throws FormatError.
  [[nodiscard]] std::uint64_t hash() const;

 private:
  std::filesystem::path folder_;
  std::unique_ptr<Nf4Reader> packed_;               // or
  std::unique_ptr<HuggingFaceFolder> huggingface_;  // or
  std::unique_ptr<CheckpointReader> reader_;
  ModelConfig config_;
  ParamLayout layout_;
  mutable std::mutex mutex_;  // of the reader
};

/// Adapters beside a model; their own values, unit by unit of `layout`, safe from several threads.
struct AdapterSource {
  std::shared_ptr<const AdapterLayout> layout;
  UnitValues values;
};

/// Those of PEFT's folder; where it names its base by a hash, all of `base` is read to compare it. Throws
/// as PeftFolder does; ConfigError where they belong to another base.
[[nodiscard]] AdapterSource adapters_of(const std::filesystem::path& peft_folder,
                                        const ModelSource& base);
/// Those of a checkpoint, whose base `base` must be: all of it is read to compare its hash. Keeps a
/// reference to `reader`. Throws FormatError; ConfigError where they belong to another base, or to a random one.
[[nodiscard]] AdapterSource adapters_of(CheckpointReader& reader, const ModelSource& base);

}  // namespace tessera
