// Saves in the background: the snapshot of one step, a writer thread a rank, and the agreement of
// all ranks through the step's exchange. "Saved" is reported when the checkpoint has been
// committed, on every rank at the same step; what is saved is the state of the step at which the
// save began.
//
//   begin      between two steps: rank 0 makes the folder, every rank holds its pages still
//   writing    each rank's thread writes its shard; its state rides in the step's exchange
//   committing all shards are there: rank 0's thread writes the manifest and renames the folder
//   idle       announced
// Writer threads make no MPI call.
#pragma once

#include <atomic>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/step_exchange.h"
#include "runtime/checkpoint/writer.h"
#include "runtime/run/page_snapshot.h"
#include "runtime/run/trainer.h"

namespace tessera {

struct SaverOptions {
  std::filesystem::path run_folder;
  RetentionOptions retention;
  std::size_t staging_bytes = 0;
};

/// What became of a save; reported once, on every rank.
struct SaveOutcome {
  Index step = 0;
  bool saved = false;
  std::filesystem::path folder;       // where it lies, if saved
  std::string message;                // if not: rank, host, path and cause, the same on every rank
  double seconds = 0;                 // from begin to the announcement
  SnapshotReport snapshot;            // this rank's
  std::optional<EvaluatedStep> best;  // of --keep-best, on rank 0
};

class CheckpointSaver {
 public:
  /// Keeps references to `comm`, `shard`, `optimizer`.
  CheckpointSaver(const SaverOptions& options, Communicator& comm, ShardState& shard,
                  PageSweep& optimizer, Arena& arena);
  /// Waits for this rank's thread.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  /// Begins to save the state as it is. `info` has everything but save_id and world_size. Returns
  /// the outcome where the save has failed already, on every rank. Collective. Requires: the
  /// trainer has been synchronised, no save is under way.
  [[nodiscard]] std::optional<SaveOutcome> begin(ManifestInfo info);
  [[nodiscard]] bool under_way() const noexcept { return phase_ != Phase::idle; }
  [[nodiscard]] Index step() const noexcept { return info_.step; }

  /// For the step's exchange: what this rank's thread is doing, and what the ranks' states mean.
  /// `heard` is collective; it returns the outcome of a save that has just ended.
  void contribute(StepExchange& exchange);
  [[nodiscard]] std::optional<SaveOutcome> heard(const StepExchange& exchange);

  /// Waits until the save that is under way has ended, outside a step. Collective.
  [[nodiscard]] std::optional<SaveOutcome> finish();
  /// save_id of the last committed save, or of what the run continued from: the next one's parent.
  void set_parent(const std::string& save_id) { parent_save_id_ = save_id; }
  /// A step that has been loaded whole: retention need not read it again. `fingerprint` is that of
  /// VerifiedSteps, from before. For rank 0. Requires: no save is under way.
  void set_loaded(const std::filesystem::path& step_folder, std::string fingerprint) {
    verified_.remember(step_folder, std::move(fingerprint));
  }

 private:
  enum class Phase : std::uint8_t { idle, writing, committing };

  void write_shard();
  void commit();
  [[nodiscard]] WriterState thread_state();
  [[nodiscard]] std::optional<SaveOutcome> advance(bool all_done, bool any_failed);
  [[nodiscard]] SaveOutcome failed();
  void start_thread(void (CheckpointSaver::*work)());
  void join();

  SaverOptions options_;
  Communicator& comm_;
  ShardState& shard_;
  PageSnapshot snapshot_;
  ParamTable table_;
  Phase phase_ = Phase::idle;
  ManifestInfo info_;
  std::string parent_save_id_;
  std::filesystem::path save_folder_;
  double began_ = 0;                     // host seconds
  std::vector<ShardSummary> summaries_;  // of all ranks, on rank 0, once all are written
  // What the thread leaves behind: written before `thread_state_` says done or failed.
  std::atomic<WriterState> thread_state_{WriterState::idle};
  std::string failure_;
  ShardSummary summary_;
  std::filesystem::path committed_;
  std::vector<std::string> problems_;
  std::optional<EvaluatedStep> best_;
  VerifiedSteps verified_;  // of rank 0's thread
  std::thread thread_;
};

}  // namespace tessera
