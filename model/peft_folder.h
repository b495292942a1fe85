// PEFT's folder of LoRA adapters (huggingface.co/docs/peft): adapter_config.json and
// adapter_model.safetensors with, for each layer, base_model.model.model.layers.N.<module>.lora_A.weight
// [r, in] and lora_B.weight [out, r]. Files come from strangers: whatever in them would change what the
// model computes, and is not supported here, is refused by name.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "model/adapter_layout.h"
#include "model/export_files.h"
#include "model/param_values.h"
#include "model/safetensors.h"

namespace tessera {

inline constexpr std::string_view kPeftConfig = "adapter_config.json";
inline constexpr std::string_view kPeftWeights = "adapter_model.safetensors";

/// Whether the folder is one of PEFT's.
[[nodiscard]] bool is_peft_folder(const std::filesystem::path& folder);

/// Throws ConfigError if the folder, which is to hold a whole model, is one of PEFT's; `name` is what the
/// user gave: "--init FOLDER".
void require_no_peft_folder(const std::filesystem::path& folder, std::string_view name);

/// Reads adapter_config.json. Throws FormatError where it cannot be read or is not one; ConfigError for
/// a feature that is not supported (DoRA, modules_to_save, rank_pattern, alpha_pattern, bias, regular
/// expressions, another peft_type, ...), naming it.
[[nodiscard]] AdapterConfig read_peft_config(const std::filesystem::path& folder);

/// The tensor in PEFT's file of one of ours ("block.3.attention.q.lora_a").
[[nodiscard]] std::string peft_tensor_name(std::string_view tensor);

/// The model that adapters were trained beside.
struct PeftBase {
  std::string name;  // what adapter_config.json says of it
  /// 16 hex digits of its numbers (ManifestInfo::base_model_hash); empty where that is not known. It
  /// stands in the metadata of the file of tensors, where PEFT leaves it alone.
  std::string hash;
  /// How it was stored while they were trained, "f32", "bf16" or "nf4"; empty where that is not known. It
  /// stands beside the hash.
  std::string dtype;
};

/// What the folder says of its base. Throws FormatError.
[[nodiscard]] PeftBase read_peft_base(const std::filesystem::path& folder);

class PeftFolder {
 public:
  /// Reads both files' headers. Keeps a reference to `layout`, which is that of the model with the adapters
  /// of read_peft_config, embeddings aside. Throws as read_peft_config, and FormatError for a tensor that
  /// is missing (half of a pair), unexpected, of another shape, or of a type other than F32, BF16 and
  /// F16.
  PeftFolder(const std::filesystem::path& folder, const AdapterLayout& layout);

  /// Fills `values` with elements begin, begin + 1, ... of a block's unit of the layout; beyond its count
  /// zeros. Safe from several threads. Throws FormatError.
  void read_unit(UnitId unit, Index begin, std::span<float> values) const;
  /// Of all tensors, by name.
  [[nodiscard]] std::uint64_t content_hash() const;
  /// PeftBase::hash; empty for folders that were written elsewhere.
  [[nodiscard]] std::string base_hash() const;
  /// Throws ConfigError if the folder names the hash of another base than `hash`, the one of `base`.
  void require_base(const std::string& hash, const std::string& base) const;

 private:
  const AdapterLayout& layout_;
  SafetensorsFile file_;
  std::map<std::string, const SafetensorsTensor*, std::less<>> tensors_;  // by our name
};

/// The files of such a folder on the way out, in f32.
class PeftFiles final : public ExportFiles {
 public:
  /// `whole`: makes the file of tensors; `part`: opens the one that create_peft_files made for the same
  /// layout and base. Keeps a reference to `layout`. Throws WriteError; ConfigError where embeddings were trained, for which PEFT has other files.
  PeftFiles(std::filesystem::path folder, const AdapterLayout& layout, PeftBase base,
            SafetensorsShare share);

  [[nodiscard]] std::int64_t tensor_bytes() const override { return tensor_bytes_; }
  [[nodiscard]] std::int64_t written_bytes() const override { return written_bytes_; }
  void write_unit(UnitId unit, Index begin, std::span<const float> values) override;
  /// Requires, of whole files: all elements have been written.
  void close() override { writer_.close(); }
  void write_config() const override;

 private:
  std::filesystem::path folder_;
  const AdapterLayout& layout_;
  PeftBase base_;
  std::map<std::string, std::int64_t, std::less<>> offsets_;  // in bytes, by our name
  std::int64_t tensor_bytes_ = 0;
  SafetensorsWriter writer_;
  std::atomic<std::int64_t> written_bytes_ = 0;
};

/// Makes the file of tensors in `folder`, for processes that then write parts of it. Throws as PeftFiles.
void create_peft_files(const std::filesystem::path& folder, const AdapterLayout& layout,
                       const PeftBase& base);

/// Writes such a folder, in f32. It is there whole or not at all (PartialFolder). Throws WriteError;
/// ConfigError where embeddings were trained, for which PEFT has other files.
void write_peft_folder(const std::filesystem::path& folder, const AdapterLayout& layout,
                       const PeftBase& base, const UnitValues& values);

}  // namespace tessera
