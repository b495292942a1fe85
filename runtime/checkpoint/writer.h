// Makes shards that have been written a checkpoint: either all of it exists under its name,
// durably, or nothing does. The order of writes, syncs and renames is that of format.md.
//
// A save of W ranks, without the messages between them:
//   rank 0      make_save_folder                                       (run_folder.h)
//   every rank  ShardWriter: create, write, finish                     (shard_writer.h)
//   rank 0      commit_checkpoint, once it has all summaries; or remove_folder, if any rank failed
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/layout.h"
#include "runtime/checkpoint/retention.h"

namespace tessera {

struct CommitRequest {
  std::filesystem::path run_folder;
  std::filesystem::path save_folder;  // from make_save_folder, holding the shards
  ManifestInfo info;                  // nonfinite_params is filled in from the shards
  ParamTable table;
  std::vector<ShardSummary> shards;  // one a rank, in any order
  RetentionOptions retention;
  VerifiedSteps* verified = nullptr;  // what earlier saves of this process know; null: nothing
};

struct CommitResult {
  std::filesystem::path folder;  // RUN/step-NNNNNNNN
  std::vector<Index> removed;    // steps that retention deleted
  std::vector<std::string>
      problems;  // with LATEST or retention; the checkpoint stands all the same
  std::optional<EvaluatedStep> best;  // of retention.keep_best
};

/// Removes the folder of a save that failed, while the failure travels on; where it cannot, warns.
void discard_save(const std::filesystem::path& save_folder) noexcept;

/// The part of `commit_checkpoint` up to the durable rename, which returns the step's folder: for a
/// folder that holds some of the shards only (format.md, Local saves).
[[nodiscard]] std::filesystem::path place_checkpoint(const CommitRequest& request,
                                                     const SaveHook& hook = {});

/// Writes manifest and CHECKSUMS, renames the folder into place, updates LATEST, and only then
/// deletes what need not be kept. Throws WriteError before the rename: the save folder is then gone
/// and nothing else has changed. Throws WriteError after it only if the run folder cannot be
/// synced. For rank 0's writer thread: no MPI.
[[nodiscard]] CommitResult commit_checkpoint(const CommitRequest& request,
                                             const SaveHook& hook = {});

/// Fills values with elements begin, begin + 1, ... of a parameter's flattened array.
using ParamSource = std::function<void(StateArray array, const ParamRow& param, Index begin,
                                       std::span<float> values)>;

struct WriteRequest {
  std::filesystem::path run_folder;  // made if there is none
  ManifestInfo info;                 // world_size shards are written; save_id is filled in if empty
  ParamTable table;
  ParamSource source;  // asked from several threads, for each element once, in pieces below 1 MiB
};
/// A whole save from one process, in bounded memory and without retention: what `convert import`
/// does. Throws WriteError, or what the source throws; nothing is left behind then.
CommitResult write_checkpoint(const WriteRequest& request);

}  // namespace tessera
