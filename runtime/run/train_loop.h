// Steps, evaluations, samples and saves of a run whose state is there, until it ends or is asked
// to.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "collectives/communicator.h"
#include "collectives/step_exchange.h"
#include "runtime/launch/signals.h"
#include "runtime/monitor/loss_watch.h"
#include "runtime/monitor/metrics.h"
#include "runtime/monitor/nonfinite.h"
#include "runtime/monitor/rank_watch.h"
#include "runtime/monitor/step_trace.h"
#include "runtime/run/checkpoint_saver.h"
#include "runtime/run/config.h"
#include "runtime/run/resume.h"
#include "runtime/run/run_data.h"
#include "runtime/run/sample_writer.h"
#include "runtime/run/training_run.h"

namespace tessera {

/// What a save says of the run, and where its weights come from.
struct RunSource {
  RunIdentity identity;
  std::string run_id;
  WeightsOrigin weights;
};

/// What a loop works with beside the run and its data.
struct LoopTools {
  CheckpointSaver& saver;
  StopRequests& stops;
  StepTrace* trace = nullptr;       // null: none
  SampleWriter* samples = nullptr;  // null: none
  /// Step of the export that --export holds already; none: there is none. The same on every rank.
  std::optional<std::int64_t> exported_step = {};
};

class TrainLoop {
 public:
  /// Keeps references to all but `source`. Rank 0 opens OUT/metrics.jsonl. Collective.
  TrainLoop(const RunConfig& options, RunSource source, TrainingRun& run, RunData& data,
            const LoopTools& tools);

  /// A line for people and programs, on rank 0.
  void announce(const std::string& event, const std::string& text,
                const nlohmann::ordered_json& fields = nlohmann::ordered_json::object());
  /// The same for what is amiss: a warning (log.h), which goes to OUT/warnings.jsonl too, on rank 0.
  void warn(const std::string& event, const std::string& text,
            const nlohmann::ordered_json& fields = nlohmann::ordered_json::object());
  /// For programs, and with --verbose for people: what the start text has.
  void note(const std::string& event, const std::string& text,
            const nlohmann::ordered_json& fields = nlohmann::ordered_json::object());
  /// For programs alone.
  void record(const std::string& event, const nlohmann::ordered_json& fields);
  /// Returns the exit status. Throws, agreed on all ranks, what ends a run.
  [[nodiscard]] int run();

 private:
  [[nodiscard]] static bool is_due(Index every, std::int64_t step) {
    return every > 0 && step % every == 0;
  }
  [[nodiscard]] bool saves_anything() const {
    return options_.checkpoint.save_at_end || options_.checkpoint.save_every > 0;
  }
  [[nodiscard]] bool is_save_due(std::int64_t step) const {
    return is_due(options_.checkpoint.save_every, step) ||
           (step == options_.steps && options_.checkpoint.save_at_end);
  }
  [[nodiscard]] bool is_export_due(std::int64_t step) const {
    return !options_.model_export.folder.empty() &&
           (is_due(options_.model_export.every, step) || step == options_.steps);
  }
  // What a save after this step writes; asked once a step. `trial`: any save will do.
  enum class Trial : std::uint8_t { none, wanted };
  [[nodiscard]] SaveParts parts_due(const StepReport& report, Trial trial);
  // What is due after a step; whoever wants to stop does not wait for it.
  void look_at_model(std::int64_t step);
  void announce_dropped(std::string_view what);
  enum class Sample : std::uint8_t { goes_on, ends };
  struct Vote {
    bool continues;  // no rank was asked to stop
    bool sample_ends;
    bool same_tokens;  // every rank gave the same
  };
  // Between steps; the same answer on every rank. `sample`: whether this rank writes samples that
  // end; `tokens`: the last of each, where all ranks write them. Collective. Requires: at most
  // kMostSamplePrompts tokens.
  Vote vote(Sample sample = Sample::goes_on, std::span<const std::int32_t> tokens = {});
  void tell(const StepReport& report);
  // What a step sends is the same for most steps, and reported when it changes.
  void tell_traffic(std::int64_t step);
  // Which ranks hold the others up, and now and then how evenly they compute; on rank 0.
  void watch_ranks(const StepReport& report);
  // Whether the run has diverged though nothing is infinite: reported when it is seen, and at the end.
  void watch_loss(const StepReport& report);
  void tell_diverged(std::string_view when);
  void tell(const std::optional<TraceOutcome>& outcome);
  void tell(const SaveOutcomes& outcomes);
  void tell(const SaveOutcome& outcome);
  // Of a checkpoint, an export or a local save that failed.
  void tell_failed(const SaveOutcome& outcome);
  // At the end of a run whose last save, or export, failed.
  void tell_unsaved();
  // Neither skipped nor an update: with masks this may be so now and then, and says something about
  // the data if it is often.
  void warn_without_targets(const StepReport& report);
  void tell_without_targets();
  void count_skipped(const StepReport& report);
  // Collective.
  void tell_skipped(const StepReport& report);
  // How a run ends that has reached its last step.
  [[nodiscard]] int final_status();
  // Whether the step has an evaluation of all sets.
  [[nodiscard]] bool is_evaluation_due(std::int64_t step) const {
    return step == options_.steps || is_due(options_.eval.every, step);
  }
  // Whether a save of the step is one of those that --keep-best chooses among.
  [[nodiscard]] bool judges(const EvalSet& set, std::int64_t step) const {
    return is_save_due(step) && options_.checkpoint.keep_best == set_label(set.name);
  }
  // What is due after the step. False: dropped, because some rank was asked to stop.
  bool evaluate(std::int64_t step);
  bool evaluate(const EvalSet& set);
  // Rank 0 writes; what its parameters wait for, the gathers of the last update, is every rank's.
  // The others vote with it after each token; where acquiring parameters is collective they write the
  // same. False: dropped, because some rank was asked to stop.
  bool sample();
  void save(SaveParts parts = {});
  void finish_save();
  // "the save of step 8 failed", of the last one; empty: it did not.
  [[nodiscard]] std::string& failed(SaveKind kind) {
    return failed_[static_cast<std::size_t>(kind)];
  }
  // The first of them that is not empty: it stays beside the progress until it is over.
  [[nodiscard]] std::string_view warning() const;
  // A step that --keep-best holds for the best since this save.
  void tell_best(const SaveOutcome& outcome);

  const RunConfig& options_;
  Communicator& comm_;
  StepExchange votes_;  // outside steps
  RunData& data_;
  TrainingRun& run_;
  CheckpointSaver& saver_;
  StepTrace* trace_;       // null: none
  SampleWriter* samples_;  // null: none
  StopRequests& stops_;
  RunSource source_;
  bool trial_save_begun_ = false;     // any save will do
  std::unique_ptr<Metrics> metrics_;  // rank 0 alone
  std::optional<LossWatch> losses_;   // rank 0 alone
  std::unique_ptr<RankWatch> ranks_;  // rank 0 of several
  std::vector<RankTimes> times_;      // of all ranks in the last step, where ranks_ is
  std::vector<std::string> hosts_;    // of all ranks
  Index steps_ = 0;                   // that this process has made
  Index skipped_ = 0;                 // of them
  Index skipped_in_a_row_ = 0;
  std::string skip_advice_;  // of the last row of skipped steps
  bool warned_without_targets_ = false;
  std::set<std::string> warned_of_evaluation_;  // names of sets
  std::int64_t evaluated_step_ = 0;
  std::vector<SavedEvaluation> evaluations_;    // of that step
  std::optional<EvaluatedStep> best_;           // as last announced
  std::array<std::string, kSaveKinds> failed_;  // by SaveKind
  std::int64_t saved_step_ = 0;                 // the newest checkpoint; 0: none
  bool is_local_due_ = false;                   // since a step at which another save was under way
  bool lacks_checkpoint_ = false;               // a local save that was to be promoted failed
  bool has_told_local_ = false;                // of this process's local saves, or since one failed
  std::optional<std::int64_t> exported_step_;  // before this process
  std::optional<StopReason> stop_;             // the same on every rank
  Traffic last_traffic_;                       // of all steps reported so far
  std::optional<Traffic> step_traffic_;        // of a step, as last recorded
};

}  // namespace tessera
