// The numbers of a step: one parameter's, and the statistics and hashes of all.
#pragma once

#include <string>

#include "jobs/inspect/output.h"
#include "runtime/checkpoint/reader.h"

namespace tessera::inspect {

/// Throws ConfigError where there is no such parameter.
[[nodiscard]] const ParamRow& find_param(const CheckpointReader& reader, const std::string& name);

/// Statistics, histogram and first values. Throws ConfigError where there is no such parameter.
void show_param(CheckpointReader& reader, const std::string& name, Output& out);
void show_statistics(CheckpointReader& reader, Output& out);
void show_hashes(CheckpointReader& reader, Output& out);

}  // namespace tessera::inspect
