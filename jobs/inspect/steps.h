// Which step of a run is shown, and what its folders are.
#pragma once

#include <filesystem>
#include <optional>

#include "jobs/inspect/options.h"
#include "jobs/inspect/output.h"
#include "kernels/base/read_retry.h"

namespace tessera::inspect {

inline constexpr int kDamaged = 3;  // exit status

/// A step folder as it is, or the newest complete one of a run, whose steps are listed. Throws
/// ConfigError, FormatError.
[[nodiscard]] std::filesystem::path choose_step(const Options& options, ReadRetry& retry,
                                                Output& out);

/// The same for --diff, where only those passed over are named.
[[nodiscard]] std::filesystem::path other_step(const std::filesystem::path& other,
                                               ReadRetry& retry);

/// What is wrong with a step without a look at its arrays; what the manifest says is shown all
/// the same.
void tell_state(const std::filesystem::path& folder, ReadRetry& retry, Output& out);

}  // namespace tessera::inspect
