// Which folder of steps a run continues from: --out, or what --resume names. For rank 0 alone.
#pragma once

#include <filesystem>
#include <optional>

#include "runtime/checkpoint/run_folder.h"
#include "runtime/run/config.h"

namespace tessera {

/// Where to look for the step to continue; empty: this is a fresh run. `--resume PATH` begins a
/// branch, which is written down in --out (`begin_branch`): the same command later continues that
/// branch there instead of beginning it again. Throws ConfigError: `none` with steps in --out, PATH
/// elsewhere with steps in --out that do not begin at it; FormatError: --out holds superseded steps
/// only; ReadError.
[[nodiscard]] std::optional<StepSearch> resume_search(const RunConfig& options);

/// Whether the steps that are continued are those of --out: not with `--resume none`, nor where
/// `--resume PATH` begins a branch. Before `begin_branch`. Throws ReadError.
[[nodiscard]] bool continues_out(const RunConfig& options);

/// Writes down in --out that its steps begin at the step that --resume PATH named. Before the first
/// of them is saved. Throws WriteError.
void begin_branch(const RunConfig& options);
/// Whether `begin_branch` could write: throws what it would, and changes nothing.
void require_branch_place(const RunConfig& options);

/// How long reads of this run are tried again: ranks that wait for the one that reads must not look
/// hung.
[[nodiscard]] ReadRetry retry_of(const RunConfig& options);

/// Warns that a step is passed over.
void warn_passed_over(const StepFolder& step);

}  // namespace tessera
