// Which checkpoints a run keeps. The rule is a pure function; `apply_retention` deletes.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/layout.h"

namespace tessera {

struct RetentionOptions {
  Index keep = 3;        // newest complete steps that stay; at least 1
  Index keep_every = 0;  // steps that are multiples of it stay for ever; 0 turns this off
};
/// Throws ConfigError if `keep` is below 1 or `keep_every` negative.
void check(const RetentionOptions& options);

/// What the rule must know of a step.
struct StepFacts {
  Index step;
  bool is_complete;  // only complete steps count, and only they are removed
  bool is_finite;    // all parameters are finite
};

/// The steps to remove, lowest first, once `just_written` is safe. Never that one, never the
/// highest step whose parameters are all finite, and never one that is not complete: people may
/// want to look at it.
[[nodiscard]] std::vector<Index> steps_to_remove(std::span<const StepFacts> steps,
                                                 const RetentionOptions& options,
                                                 Index just_written);

struct RetentionResult {
  std::vector<Index> removed;
  std::vector<std::string> problems;  // what could not be deleted, and why
};
/// Renames to `.trash-`, then deletes.
[[nodiscard]] RetentionResult apply_retention(const std::filesystem::path& run_folder,
                                              const RetentionOptions& options, Index just_written,
                                              const SaveHook& hook = {});

}  // namespace tessera
