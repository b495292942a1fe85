// Which checkpoints a run keeps. The rule is a pure function; `apply_retention` deletes.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/evaluations.h"
#include "runtime/checkpoint/layout.h"

namespace tessera {

struct RetentionOptions {
  Index keep = 3;        // newest complete steps that stay; at least 1
  Index keep_every = 0;  // steps that are multiples of it stay permanently; 0 turns this off
  /// Name of the evaluation set whose best step stays; empty: none.
  std::string keep_best = {};
};
/// Throws ConfigError if `keep` is below 1 or `keep_every` negative.
void check(const RetentionOptions& options);

/// What the rule must know of a step.
struct StepFacts {
  Index step;
  bool is_complete;  // by its headers; only complete steps count, and only they are removed
  bool is_finite;    // all parameters are finite
  std::optional<SavedEvaluation> evaluation = {};  // of the set of keep_best
};

/// Whether every byte of a step is right: asked only of steps on which a deletion depends.
using IsWhole = std::function<bool(Index step)>;

/// The complete step with the lowest loss among those that compare with the highest (by_loss), and
/// are whole.
[[nodiscard]] std::optional<EvaluatedStep> best_step(std::span<const StepFacts> steps,
                                                     const IsWhole& is_whole);

/// The steps to remove, lowest first, once `just_written` is safe. Never that one, never the
/// highest step whose parameters are all finite, never the best one of `keep_best`, and never one that is not complete and whole:
/// people may want to look at it. Nor does such a step count among those that are kept.
[[nodiscard]] std::vector<Index> steps_to_remove(std::span<const StepFacts> steps,
                                                 const RetentionOptions& options,
                                                 Index just_written, const IsWhole& is_whole);

/// Steps whose every byte this process has seen to be right (it wrote or loaded them, or looked),
/// so that the next save need not read them again. A file that has been touched since is not
/// trusted.
class VerifiedSteps {
 public:
  /// Names, sizes, inodes and times of a step's files.
  [[nodiscard]] static std::string fingerprint(const std::filesystem::path& step_folder);
  /// `seen` is the fingerprint from before the step was read.
  void remember(const std::filesystem::path& step_folder, std::string seen);
  /// From here if it is remembered, else by reading all of it. Where that finds damage, `problem`
  /// is set, once for each step.
  [[nodiscard]] bool is_whole(const std::filesystem::path& step_folder,
                              std::optional<std::string>& problem);

 private:
  std::map<std::filesystem::path, std::string> whole_;
  std::set<std::filesystem::path> told_;
};

struct RetentionResult {
  std::vector<Index> removed;
  std::vector<std::string> problems;  // what could not be deleted, and why; what does not count
  std::optional<EvaluatedStep> best;  // of keep_best
};
/// Lets BEST name the best step of `keep_best`, where one is evaluated; then, of what is to be
/// removed, renames to `.trash-`, and deletes. A step that cannot be read now, or is of another run than
/// the one just written, stays and does not count.
[[nodiscard]] RetentionResult apply_retention(const std::filesystem::path& run_folder,
                                              const RetentionOptions& options, Index just_written,
                                              VerifiedSteps& verified, const SaveHook& hook = {});

/// The same without deleting anything, where a run continues: BEST names the best complete step of
/// `keep_best`; where there is none, or nothing is to be kept so, BEST is removed. Returns that
/// step. Throws WriteError, FormatError.
std::optional<EvaluatedStep> settle_best(const std::filesystem::path& run_folder,
                                         const std::string& keep_best, const std::string& run_id);

}  // namespace tessera
