// Whether a run may continue a step, and what the user should know of it: model, data, options.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/run/resume.h"

namespace tessera {

/// The first field in which a config.json differs from this run's: "its head_dim is 32, this run's
/// is 64". Empty if they are the same model.
[[nodiscard]] std::string model_difference(const std::string& theirs, const std::string& ours);

/// What changes from the run that wrote the step `folder` to this one: a sentence each. Options are
/// compared by value. Throws ConfigError where this run may not continue that step: another model;
/// another order of data without --allow-data-change.
[[nodiscard]] std::vector<std::string> compare_run(const ManifestInfo& info,
                                                   const std::filesystem::path& folder,
                                                   const RunConfig& options,
                                                   const RunIdentity& identity);

}  // namespace tessera
