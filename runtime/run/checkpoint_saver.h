// Saves in the background: the snapshot of one step, a writer thread a rank, and the agreement of
// all ranks through the step's exchange. A save writes a checkpoint, an export of the model for other
// programs, a checkpoint on the nodes' own disks, or several of them from one snapshot; one of them
// may fail without the others. "Saved" is reported
// when all of it stands, on every rank at the same step; what is saved is the state of the step at
// which the save began.
//
//   begin      between two steps: rank 0 makes the places, every rank holds its pages still
//   writing    each rank's thread writes its parts; its state rides in the step's exchange
//   committing all parts are there: the threads of rank 0, and for local saves of one rank a host,
//              make them valid
//   tidying    announced; after a local save, what it replaces is deleted
//   idle
// A local save may then be promoted beside the saves that follow: it becomes a step of --out.
// Writer threads make no MPI call.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/step_exchange.h"
#include "runtime/run/checkpoint_output.h"
#include "runtime/run/config.h"
#include "runtime/run/export_output.h"
#include "runtime/run/local_output.h"
#include "runtime/run/page_snapshot.h"
#include "runtime/run/promotion.h"
#include "runtime/run/trainer.h"
#include "runtime/run/writer_thread.h"

namespace tessera {

struct SaverOptions {
  std::filesystem::path run_folder;
  RetentionOptions retention;
  std::size_t staging_bytes = 0;
  std::optional<ExportOptions> model_export = {};  // none: no exports
  std::filesystem::path local_folder = {};         // --save-local; empty: no local saves
  bool promotes = false;                           // some local saves
};
/// As the options of a run say.
[[nodiscard]] SaverOptions saver_options(const RunConfig& options, const ModelConfig& config,
                                         const ShardState& shard);

/// What a save writes.
enum class SaveKind : std::uint8_t { checkpoint, model_export, local };
inline constexpr std::size_t kSaveKinds = 3;
struct SaveParts {
  bool checkpoint = true;
  bool model_export = false;
  bool local = false;
  bool promoted = false;  // with `local`: once it stands it becomes a step of the run's folder
  [[nodiscard]] bool any() const noexcept { return checkpoint || model_export || local; }
};

/// What became of a part of a save; reported once, on every rank.
struct SaveOutcome {
  SaveKind kind = SaveKind::checkpoint;
  Index step = 0;
  bool saved = false;
  std::filesystem::path folder;            // where it lies, if saved
  std::string message;                     // if not: rank, path and cause, the same on every rank
  bool was_promoted = false;               // a checkpoint, from a local save
  bool given_up = false;                   // not saved, because something else was more urgent
  bool lacks_checkpoint = false;           // it was to be promoted, and the local save is of no use
  double seconds = 0;                      // from begin to the announcement
  SnapshotReport snapshot;                 // this rank's
  std::optional<EvaluatedStep> best = {};  // of --keep-best, of a checkpoint, on rank 0
};
using SaveOutcomes = std::vector<SaveOutcome>;

class CheckpointSaver {
 public:
  /// Keeps references to `comm`, `shard`, `optimizer`. Collective. Throws, agreed: as LocalOutput.
  CheckpointSaver(const SaverOptions& options, Communicator& comm, ShardState& shard,
                  PageSweep& optimizer, Arena& arena);
  /// Waits for this rank's thread.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  /// Begins to save the state as it is. `info` has everything but save_id and world_size. Returns
  /// the outcomes of parts that have failed already, on every rank. Collective. Requires: the
  /// trainer has been synchronised, no save is under way, nor a promotion where one or a checkpoint
  /// is asked for; a model_export or local_folder was given where it is asked for.
  [[nodiscard]] SaveOutcomes begin(const ManifestInfo& info, SaveParts wanted = {});
  [[nodiscard]] bool under_way() const noexcept { return phase_ != Phase::idle; }
  [[nodiscard]] bool is_promoting() const noexcept { return promotion_.under_way(); }
  /// Of what is under way.
  [[nodiscard]] Index step() const noexcept { return under_way() ? step_ : promotion_.step(); }

  /// For the step's exchange: what this rank's thread is doing, and what the ranks' states mean.
  /// `heard` is collective; it returns the outcomes of what has just ended.
  void contribute(StepExchange& exchange);
  [[nodiscard]] SaveOutcomes heard(const StepExchange& exchange);

  /// A local save and a promotion that are under way are to fail soon: something else is more
  /// urgent. Every rank.
  void give_up_local() noexcept;
  /// Waits until the save that is under way has ended, and what is promoted, outside a step.
  /// Collective.
  [[nodiscard]] SaveOutcomes finish();
  /// save_id of what the run continued from: the next save's parent.
  void set_parent(const std::string& save_id) { checkpoint_->set_parent(save_id); }
  /// Of a run with local saves, before the first one: as LocalOutput::set_folder.
  void set_local_folder(const std::string& folder, const std::string& parent_save_id);
  /// Whether local saves are made, and whether a partner has copies of them.
  [[nodiscard]] bool saves_locally() const noexcept { return local_ != nullptr; }
  [[nodiscard]] bool has_partner() const noexcept {
    return local_ != nullptr && local_->has_partner();
  }
  /// A step that has been loaded whole: retention need not read it again. `fingerprint` is that of
  /// VerifiedSteps, from before. For rank 0. Requires: no save is under way.
  void set_loaded(const std::filesystem::path& step_folder, std::string fingerprint) {
    checkpoint_->verified().remember(step_folder, std::move(fingerprint));
  }

 private:
  enum class Phase : std::uint8_t { idle, writing, committing, tidying };
  struct Part {
    SaveKind kind;
    std::unique_ptr<SnapshotOutput> output;
    bool is_active = false;  // of the save under way, and has not failed; the same on every rank
    bool stands = false;     // of the save that has ended last; the same on every rank
    // Of this rank's thread:
    std::string closed = {};
    std::string failure = {};  // empty: none
    // Of the ranks that commit:
    std::vector<std::string> closed_by_rank = {};
    CommitNotes notes = {};
  };

  void write_parts();
  void commit();
  void tidy();
  // Whether this rank's thread has something to do in this phase.
  [[nodiscard]] bool is_needed() const;
  // Calls it for the parts that have not failed on this rank, and keeps what it throws. False: none
  // is left.
  bool for_each_sound(const std::function<void(Part&)>& work);
  [[nodiscard]] WriterState thread_state();
  [[nodiscard]] SaveOutcomes advance(bool all_done, bool any_failed);
  void begin_promotion();
  void advance_promotion(bool all_done, bool any_failed, SaveOutcomes& outcomes);
  // Every rank gives an answer that begins with '+', or with '-' and why its part failed, or with '?'
  // where that is not known. True if all are '+'; else `outcomes` has one more. Collective.
  bool all_agree(Part& part, const std::string& mine, SaveOutcomes& outcomes);
  void end_writing(bool any_failed, SaveOutcomes& outcomes);
  void end_commit(SaveOutcomes& outcomes);
  [[nodiscard]] bool is_any_active() const;
  [[nodiscard]] SaveOutcome outcome_of(const Part& part) const;
  void start_thread(void (CheckpointSaver::*work)());
  void cancel() noexcept;

  Communicator& comm_;
  ShardState& shard_;
  PageSnapshot snapshot_;
  std::vector<Part> parts_;       // a checkpoint first: it is committed first
  CheckpointOutput* checkpoint_;  // of parts_
  LocalOutput* local_ = nullptr;  // of parts_; null: none
  Phase phase_ = Phase::idle;
  Index step_ = 0;
  double began_ = 0;            // host seconds
  bool is_to_promote_ = false;  // the local part of the save under way
  Promotion promotion_;
  double promoted_began_ = 0;  // of its local save
  WriterThread thread_;        // last: it uses the others
};

}  // namespace tessera
