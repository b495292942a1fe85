// What a run is, at a glance: model, sequences seen, last losses, size on disk. And how its newest step
// was made: the command, the program, libraries and driver.
#pragma once

#include <filesystem>
#include <span>

#include "jobs/inspect/output.h"
#include "runtime/checkpoint/layout.h"
#include "runtime/checkpoint/run_folder.h"

namespace tessera::inspect {

/// Of a run whose newest complete step has this manifest. What a file does not tell, or cannot be read,
/// is left out.
void summarize_run(const std::filesystem::path& run, std::span<const StepFolder> steps,
                   const ManifestInfo& info, Output& out);

/// `cd` to the folder that it began in, where the step tells, and the command that saved the step, each
/// alone in a line; then, as a shell's comments, what it ran with.
/// Throws ConfigError where the step does not tell.
void show_command(const std::filesystem::path& step, const ManifestInfo& info, Output& out);

}  // namespace tessera::inspect
