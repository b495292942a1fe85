// A save as a checkpoint: a shard of each rank, the manifest, and what retention keeps of others.
#pragma once

#include <optional>

#include "runtime/checkpoint/retention.h"
#include "runtime/checkpoint/shard_writer.h"
#include "runtime/checkpoint/writer.h"
#include "runtime/run/snapshot_output.h"

namespace tessera {

struct CheckpointOutputOptions {
  std::filesystem::path run_folder;
  RetentionOptions retention;
  int rank = 0;
  int world_size = 1;
};

/// Of this rank's shard in a checkpoint, which has f32 numbers however the run stores them; without
/// its header.
[[nodiscard]] std::size_t shard_file_bytes(const ShardState& shard);

class CheckpointOutput final : public SnapshotOutput {
 public:
  /// Keeps a reference to `shard`.
  CheckpointOutput(CheckpointOutputOptions options, const ShardState& shard);

  [[nodiscard]] std::string make_place(const ManifestInfo& info) override;
  void set_place(const ManifestInfo& info, const std::string& place) override;
  void open() override;
  void write(SnapshotPage& page) override;
  [[nodiscard]] std::string close() override;
  [[nodiscard]] CommitNotes commit(std::span<const std::string> closed) override;
  void discard() noexcept override;
  [[nodiscard]] std::filesystem::path folder() const override { return folder_of(info_.step); }
  [[nodiscard]] std::filesystem::path folder_of(Index step) const;

  /// What `commit` commits.
  [[nodiscard]] CommitRequest commit_request(std::span<const std::string> closed);
  /// The same for a local save that becomes a step of this run's folder; `local`: as it was committed
  /// there, on rank 0.
  [[nodiscard]] CommitRequest promoted(CommitRequest local, const SaveIdentity& identity);
  /// Of the save under way.
  [[nodiscard]] SaveIdentity identity() const { return {info_.save_id, info_.step}; }

  /// save_id of the last committed save, or of what the run continued from: the next one's parent.
  void set_parent(const std::string& save_id) { parent_save_id_ = save_id; }
  /// The save that was committed is the parent of the next one. Every rank.
  void accept() { parent_save_id_ = info_.save_id; }
  /// Of rank 0. Requires: no save is under way.
  [[nodiscard]] VerifiedSteps& verified() noexcept { return verified_; }

 private:
  CheckpointOutputOptions options_;
  const ShardState& shard_;
  ParamTable table_;
  ManifestInfo info_;
  std::string parent_save_id_;
  std::filesystem::path save_folder_;
  std::optional<ShardWriter> writer_;
  VerifiedSteps verified_;  // of rank 0's thread
};

}  // namespace tessera
