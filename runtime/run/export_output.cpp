#include "runtime/run/export_output.h"

#include <utility>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "model/huggingface_files.h"
#include "runtime/checkpoint/adapter_base.h"
#include "runtime/checkpoint/export_companions.h"
#include "runtime/checkpoint/writer.h"

namespace tessera {
namespace {

constexpr HuggingFaceOptions kFiles;  // those of `convert export`

}  // namespace

ExportOutput::ExportOutput(ExportOutputOptions options, const ShardState& shard)
    : options_(std::move(options)), shard_(shard) {
  if (options_.model.adapters) {
    adapters_.emplace(options_.model.config, *options_.model.adapters);
  }
}

PeftBase ExportOutput::base_of(const ManifestInfo& info) const {
  if (!adapters_) {
    return {};
  }
  const AdapterBase base = adapter_base(info);
  return {.name = base.source, .hash = base.hash, .dtype = base.dtype};
}

ExportFolder ExportOutput::folder_of(const std::string& run_id) const {
  return {options_.model.folder, {run_id, options_.run_folder}};
}

std::string ExportOutput::make_place(const ManifestInfo& info) {
  const ExportFolder folder = folder_of(info.run_id);
  folder.require_ours();
  const std::filesystem::path partial = folder.make_partial(info.step);
  try {
    if (adapters_) {
      create_peft_files(partial, *adapters_, base_of(info));
    } else {
      create_huggingface_files(partial, options_.model.config, kFiles);
    }
  } catch (...) {
    discard_save(partial);
    throw;
  }
  return partial.filename().string();
}

void ExportOutput::set_place(const ManifestInfo& info, const std::string& place) {
  run_id_ = info.run_id;
  step_ = info.step;
  base_ = base_of(info);
  partial_ = options_.model.folder / place;
}

void ExportOutput::open() {
  if (adapters_) {
    files_ = std::make_unique<PeftFiles>(partial_, *adapters_, base_, SafetensorsShare::part);
  } else {
    files_ = std::make_unique<HuggingFaceFiles>(partial_, options_.model.config, kFiles,
                                                SafetensorsShare::part);
  }
}

void ExportOutput::write(SnapshotPage& page) {
  files_->write_unit(page.unit(), shard_.range(page.unit()).param_start + page.begin(),
                     page.numbers(StateArray::master));
}

std::string ExportOutput::close() {
  files_->close();
  return std::to_string(files_->written_bytes());
}

CommitNotes ExportOutput::commit(std::span<const std::string> closed) {
  std::int64_t written = 0;
  for (const std::string& bytes : closed) {
    written += std::stoll(bytes);
  }
  TESSERA_REQUIRE(written == files_->tensor_bytes(),
                  fmt::format("the ranks wrote {} bytes of {}", written, files_->tensor_bytes()));
  write_companions(options_.run_folder, partial_);
  files_->write_config();
  folder_of(run_id_).replace(partial_, step_);
  files_.reset();
  return {};
}

void ExportOutput::discard() noexcept {
  files_.reset();
  if (options_.rank == 0 && !partial_.empty()) {
    discard_save(partial_);
  }
}

}  // namespace tessera
