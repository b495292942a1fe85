// What a folder of PEFT's adapters holds, and beside which base they were trained.
#pragma once

#include "jobs/inspect/options.h"
#include "jobs/inspect/output.h"

namespace tessera::inspect {

/// Whether the folder is one of PEFT's alone: no run, step or model.
[[nodiscard]] bool is_adapter_folder(const std::filesystem::path& folder);

/// Throws ConfigError for options that are of checkpoints, and as read_peft_config; FormatError.
void describe_adapter_folder(const Options& options, Output& out);

}  // namespace tessera::inspect
