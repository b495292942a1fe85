// inspect --diff.
#pragma once

#include <filesystem>

#include "jobs/inspect/output.h"
#include "runtime/checkpoint/reader.h"

namespace tessera::inspect {

/// Compares with the step, or the newest complete step of the run, in `diff`. The exit status is
/// then that of cmp and diff.
void show_difference(CheckpointReader& reader, const std::filesystem::path& diff, ReadRetry& retry,
                     Output& out);

}  // namespace tessera::inspect
