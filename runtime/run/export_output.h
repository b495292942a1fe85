// A save as a Hugging Face folder: each rank writes the master weights that it holds, in bf16, into
// safetensors files that rank 0 has laid out; what `convert export` makes of the same step, byte for
// byte. Of adapters: as PEFT's folder, in f32, as `convert export --adapter` does.
#pragma once

#include <memory>
#include <optional>

#include "model/adapter_layout.h"
#include "model/export_files.h"
#include "model/model_config.h"
#include "model/peft_folder.h"
#include "runtime/run/export_folder.h"
#include "runtime/run/snapshot_output.h"

namespace tessera {

/// Where a run's model goes for other programs.
struct ExportOptions {
  std::filesystem::path folder;
  ModelConfig config;
  std::optional<AdapterConfig> adapters =
      {};  // what is exported, as PEFT's folder; none: the model
};

struct ExportOutputOptions {
  ExportOptions model;
  std::filesystem::path run_folder;  // whose tokenizer goes along
  int rank = 0;
};

class ExportOutput final : public SnapshotOutput {
 public:
  /// Keeps a reference to `shard`.
  ExportOutput(ExportOutputOptions options, const ShardState& shard);

  [[nodiscard]] std::string make_place(const ManifestInfo& info) override;
  void set_place(const ManifestInfo& info, const std::string& place) override;
  void open() override;
  void write(SnapshotPage& page) override;
  [[nodiscard]] std::string close() override;
  [[nodiscard]] CommitNotes commit(std::span<const std::string> closed) override;
  void discard() noexcept override;
  [[nodiscard]] std::filesystem::path folder() const override { return options_.model.folder; }

 private:
  [[nodiscard]] PeftBase base_of(const ManifestInfo& info) const;
  [[nodiscard]] ExportFolder folder_of(const std::string& run_id) const;

  ExportOutputOptions options_;
  const ShardState& shard_;
  std::string run_id_;
  Index step_ = 0;
  PeftBase base_;  // of adapters
  std::filesystem::path partial_;
  std::optional<AdapterLayout> adapters_;
  std::unique_ptr<ExportFiles> files_;
};

}  // namespace tessera
