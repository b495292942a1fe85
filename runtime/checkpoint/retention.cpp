#include "runtime/checkpoint/retention.h"

#include <algorithm>

#include <fmt/format.h>

#include "kernels/device/error.h"
#include "runtime/checkpoint/posix_file.h"
#include "runtime/checkpoint/run_folder.h"

namespace tessera {

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
                                   const RetentionOptions& options, Index just_written) {
  check(options);
  std::vector<StepFacts> complete;
  std::copy_if(steps.begin(), steps.end(), std::back_inserter(complete),
               [](const StepFacts& facts) { return facts.is_complete; });
  std::sort(complete.begin(), complete.end(),
            [](const StepFacts& a, const StepFacts& b) { return a.step > b.step; });
  const auto last_finite = std::find_if(complete.begin(), complete.end(),
                                        [](const StepFacts& facts) { return facts.is_finite; });
  std::vector<Index> removed;
  for (std::size_t i = 0; i < complete.size(); ++i) {
    const Index step = complete[i].step;
    const bool stays = static_cast<Index>(i) < options.keep || step == just_written ||
                       (last_finite != complete.end() && step == last_finite->step) ||
                       (options.keep_every > 0 && step % options.keep_every == 0);
    if (!stays) {
      removed.push_back(step);
    }
  }
  std::reverse(removed.begin(), removed.end());
  return removed;
}

RetentionResult apply_retention(const std::filesystem::path& run_folder,
                                const RetentionOptions& options, Index just_written,
                                const SaveHook& hook) {
  RetentionResult result;
  std::vector<StepFacts> facts;
  for (const StepFolder& folder : find_steps(run_folder, CheckDepth::files)) {
    if (folder.state != StepState::superseded && folder.state != StepState::temporary) {
      facts.push_back({folder.step, folder.state == StepState::complete,
                       folder.info && folder.info->nonfinite_params == 0});
    }
  }
  for (const Index step : steps_to_remove(facts, options, just_written)) {
    const std::string name = step_folder_name(step);
    const std::filesystem::path trash =
        run_folder / fmt::format(".trash-{}.{}", name, new_uuid().substr(0, 8));
    try {
      // A folder that is half deleted must not carry a step's name.
      rename_to_new(run_folder / name, trash);
      sync_folder(run_folder);
      if (hook) {
        hook(SavePhase::trash_renamed);
      }
      remove_folder(trash);
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

}  // namespace tessera
