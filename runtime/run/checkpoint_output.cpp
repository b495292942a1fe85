#include "runtime/run/checkpoint_output.h"

#include <utility>

#include "kernels/base/error.h"
#include "runtime/checkpoint/run_folder.h"

namespace tessera {
namespace {

constexpr std::size_t kUuidLength = 36;

}  // namespace

std::size_t shard_file_bytes(const ShardState& shard) {
  std::size_t bytes = 0;
  for (UnitId unit = 0; unit < shard.layout().unit_count(); ++unit) {
    bytes += shard.numbers().bytes(shard.range(unit).shard_size());
  }
  return bytes;
}

CheckpointOutput::CheckpointOutput(CheckpointOutputOptions options, const ShardState& shard)
    : options_(std::move(options)), shard_(shard), table_(param_table(shard.layout())) {}

std::string CheckpointOutput::make_place(const ManifestInfo& info) {
  const std::string save_id = new_uuid();
  return save_id + make_save_folder(options_.run_folder, {save_id, info.step}).filename().string();
}

void CheckpointOutput::set_place(const ManifestInfo& info, const std::string& place) {
  info_ = info;
  info_.world_size = options_.world_size;
  info_.parent_save_id = parent_save_id_;
  info_.save_id = place.substr(0, kUuidLength);
  save_folder_ = options_.run_folder / place.substr(kUuidLength);
}

void CheckpointOutput::open() {
  writer_.emplace(
      ShardWriterOptions{.save_folder = save_folder_,
                         .identity = {info_.save_id, info_.step},
                         .spec = shard_spec(table_.units, options_.rank, options_.world_size),
                         .arrays = shard_.numbers(),
                         .hook = {}});
  writer_->create();
}

void CheckpointOutput::write(SnapshotPage& page) {
  const Index offset =
      writer_->spec().slices.at(static_cast<std::size_t>(page.unit())).offset + page.begin();
  for (const StateArraySpec& spec : shard_.numbers().arrays()) {
    writer_->write(spec.array, offset, page.numbers(spec.array));
  }
}

std::string CheckpointOutput::close() {
  std::string summary = writer_->finish().to_text();
  writer_.reset();
  return summary;
}

CommitRequest CheckpointOutput::commit_request(std::span<const std::string> closed) {
  std::vector<ShardSummary> summaries;
  for (const std::string& text : closed) {
    summaries.push_back(ShardSummary::from_text(text));
  }
  return {.run_folder = options_.run_folder,
          .save_folder = save_folder_,
          .info = info_,
          .table = table_,
          .shards = std::move(summaries),
          .retention = options_.retention,
          .verified = &verified_};
}

CommitRequest CheckpointOutput::promoted(CommitRequest local, const SaveIdentity& identity) {
  local.run_folder = options_.run_folder;
  local.save_folder = options_.run_folder / save_folder_name(identity);
  local.retention = options_.retention;
  local.verified = &verified_;
  return local;
}

CommitNotes CheckpointOutput::commit(std::span<const std::string> closed) {
  CommitResult result = commit_checkpoint(commit_request(closed));
  return {.problems = std::move(result.problems), .best = std::move(result.best)};
}

void CheckpointOutput::discard() noexcept {
  writer_.reset();
  if (options_.rank == 0 && !save_folder_.empty()) {
    discard_save(save_folder_);
  }
}

std::filesystem::path CheckpointOutput::folder_of(Index step) const {
  return options_.run_folder / step_folder_name(step);
}

}  // namespace tessera
