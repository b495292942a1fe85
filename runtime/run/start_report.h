// What a run says of its options, its data and the step that it continues once it begins.
#pragma once

#include <optional>

#include "runtime/run/config.h"
#include "runtime/run/resume.h"
#include "runtime/run/run_data.h"
#include "runtime/run/train_loop.h"
#include "runtime/run/training_run.h"

namespace tessera {

/// What differs from the run that is continued (`point`), what of the options does nothing, and
/// what the data is, where a user should know.
void announce_run(TrainLoop& loop, const RunConfig& options, TrainingRun& run, RunData& data,
                  const std::optional<ResumePoint>& point);

}  // namespace tessera
