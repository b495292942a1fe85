#include "runtime/checkpoint/retention.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <sys/stat.h>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/read_error.h"
#include "runtime/checkpoint/run_folder.h"

namespace tessera {
namespace {

/// A name in a step's folder that no save gives; empty: there is none.
std::string foreign_name(const std::filesystem::path& step_folder) {
  for (const std::filesystem::path& path : list_folder(step_folder)) {
    const std::string name = path.filename().string();
    if (name != kChecksumsName && name != kManifestName &&
        !(name.starts_with("shard-") && name.ends_with(".h5"))) {
      return name;
    }
  }
  return {};
}

std::optional<SavedEvaluation> evaluation_of(const ManifestInfo& info, const std::string& name) {
  for (SavedEvaluation& evaluation : parse_evaluations(info.evaluations_json)) {
    if (evaluation.name == name) {
      return std::move(evaluation);
    }
  }
  return std::nullopt;
}

/// What the rule must know of the steps of a run.
std::vector<StepFacts> facts_of(const std::vector<StepFolder>& steps, const std::string& run_id,
                                const std::string& keep_best) {
  std::vector<StepFacts> facts;
  for (const StepFolder& found : steps) {
    const bool is_of_this_run = found.info && found.info->run_id == run_id;
    facts.push_back(
        {found.step, found.state == StepState::complete && is_of_this_run,
         found.info && found.info->nonfinite_params == 0,
         found.info && !keep_best.empty() ? evaluation_of(*found.info, keep_best) : std::nullopt});
  }
  return facts;
}

bool is_taken_for_whole(Index) {
  return true;
}

}  // namespace

std::optional<EvaluatedStep> best_step(std::span<const StepFacts> steps, const IsWhole& is_whole) {
  std::vector<EvaluatedStep> evaluated;
  for (const StepFacts& facts : steps) {
    if (facts.is_complete && facts.evaluation) {
      evaluated.push_back({facts.step, *facts.evaluation});
    }
  }
  for (const EvaluatedStep& each : by_loss(std::move(evaluated))) {
    if (is_whole(each.step)) {
      return each;
    }
  }
  return std::nullopt;
}

void check(const RetentionOptions& options) {
  if (options.keep < 1) {
    throw ConfigError(
        fmt::format("--keep {} would delete what has just been saved; keep at least 1",
                    options.keep),
        TESSERA_HERE);
  }
  if (options.keep_every < 0) {
    throw ConfigError(
        fmt::format("--keep-every {} is negative; 0 turns it off", options.keep_every),
        TESSERA_HERE);
  }
}

std::vector<Index> steps_to_remove(std::span<const StepFacts> steps,
                                   const RetentionOptions& options, Index just_written,
                                   const IsWhole& is_whole) {
  check(options);
  std::vector<StepFacts> complete;
  std::copy_if(steps.begin(), steps.end(), std::back_inserter(complete),
               [](const StepFacts& facts) { return facts.is_complete; });
  std::sort(complete.begin(), complete.end(),
            [](const StepFacts& a, const StepFacts& b) { return a.step > b.step; });
  std::vector<Index> removed;
  if (std::ssize(complete) <= options.keep) {
    return removed;  // and nothing need be read
  }
  const std::optional<EvaluatedStep> best = best_step(steps, is_whole);
  Index kept = 0;
  bool has_finite = false;
  for (const StepFacts& facts : complete) {
    if (kept < options.keep) {
      if (is_whole(facts.step)) {
        ++kept;
        has_finite = has_finite || facts.is_finite;
      }
    } else if (!has_finite && facts.is_finite) {
      has_finite = is_whole(facts.step);  // stays in either case
    } else if (facts.step != just_written && (!best || facts.step != best->step) &&
               (options.keep_every == 0 || facts.step % options.keep_every != 0) &&
               is_whole(facts.step)) {
      removed.push_back(facts.step);
    }
  }
  std::reverse(removed.begin(), removed.end());
  return removed;
}

std::string VerifiedSteps::fingerprint(const std::filesystem::path& step_folder) {
  std::string text;
  for (const std::filesystem::path& file : list_folder(step_folder)) {
    struct stat status = {};
    if (::lstat(file.c_str(), &status) != 0) {
      return {};  // equals none
    }
    text += fmt::format("{} {} {} {}.{} {}.{}\n", file.filename().string(), status.st_size,
                        status.st_ino, status.st_mtim.tv_sec, status.st_mtim.tv_nsec,
                        status.st_ctim.tv_sec, status.st_ctim.tv_nsec);
  }
  return text;
}

void VerifiedSteps::remember(const std::filesystem::path& step_folder, std::string seen) {
  if (!seen.empty()) {
    whole_[step_folder] = std::move(seen);
  }
}

bool VerifiedSteps::is_whole(const std::filesystem::path& step_folder,
                             std::optional<std::string>& problem) {
  ReadRetry none(std::chrono::milliseconds{0});  // the next save asks again
  StepFolder found{step_folder, 0, StepState::unreadable, {}, {}};
  try {
    if (const std::string name = foreign_name(step_folder); !name.empty()) {
      if (told_.insert(step_folder).second) {
        problem =
            fmt::format("{} holds {}, which no save wrote: the step stays, and does not count "
                        "for --keep",
                        step_folder.string(), name);
      }
      return false;
    }
    std::string now = fingerprint(step_folder);
    const auto known = whole_.find(step_folder);
    if (known != whole_.end() && known->second == now) {
      return true;
    }
    found = check_step(step_folder, CheckDepth::blocks, none);
    if (found.state == StepState::complete) {
      remember(step_folder, std::move(now));
      return true;
    }
  } catch (const FormatError& error) {
    found.reason = error.message();
  }
  if (told_.insert(step_folder).second) {
    problem = fmt::format("{} is {}: {}; it stays, and does not count for --keep",
                          step_folder.string(), state_name(found.state), found.reason);
  }
  return false;
}

RetentionResult apply_retention(const std::filesystem::path& run_folder,
                                const RetentionOptions& options, Index just_written,
                                VerifiedSteps& verified, const SaveHook& hook) {
  RetentionResult result;
  ReadRetry none(std::chrono::milliseconds{0});
  std::vector<StepFolder> steps;
  std::string run_id;  // empty, so that nothing is removed, where the new step cannot be read
  for (const NamedStep& named : named_steps(run_folder)) {
    steps.push_back(check_step(named.path, CheckDepth::headers, none));
    if (named.step == just_written && steps.back().info) {
      run_id = steps.back().info->run_id;
    }
  }
  const std::vector<StepFacts> facts = facts_of(steps, run_id, options.keep_best);
  const auto is_whole = [&](Index step) {
    std::optional<std::string> problem;
    const bool whole = verified.is_whole(run_folder / step_folder_name(step), problem);
    if (problem) {
      result.problems.push_back(*problem);
    }
    return whole;
  };
  const std::vector<Index> unneeded = steps_to_remove(facts, options, just_written, is_whole);
  // where nothing is deleted, nothing need be read
  result.best = best_step(facts, unneeded.empty() ? IsWhole(is_taken_for_whole) : is_whole);
  if (result.best) {
    try {
      write_step_name(run_folder, kBestName, result.best->step);
    } catch (const WriteError& error) {
      result.problems.push_back(error.message());
    }
  }
  if (hook) {
    hook(SavePhase::best_renamed);
  }
  for (const Index step : unneeded) {
    try {
      remove_step(run_folder, step, [&] {
        if (hook) {
          hook(SavePhase::trash_renamed);
        }
      });
      result.removed.push_back(step);
      if (hook) {
        hook(SavePhase::trash_removed);
      }
    } catch (const WriteError& error) {
      result.problems.push_back(error.message());
    }
  }
  return result;
}

std::optional<EvaluatedStep> settle_best(const std::filesystem::path& run_folder,
                                         const std::string& keep_best, const std::string& run_id) {
  ReadRetry none(std::chrono::milliseconds{0});
  std::vector<StepFolder> steps;
  if (!keep_best.empty()) {
    for (const NamedStep& named : named_steps(run_folder)) {
      steps.push_back(check_step(named.path, CheckDepth::headers, none));
    }
  }
  std::optional<EvaluatedStep> best =
      best_step(facts_of(steps, run_id, keep_best), is_taken_for_whole);
  if (best) {
    write_step_name(run_folder, kBestName, best->step);
  } else if (path_exists(run_folder / kBestName)) {
    std::error_code error;
    if (!std::filesystem::remove(run_folder / kBestName, error)) {
      throw WriteError(
          fmt::format("cannot remove {}: {}", (run_folder / kBestName).string(), error.message()),
          TESSERA_HERE);
    }
    sync_folder(run_folder);
  }
  return best;
}

}  // namespace tessera
