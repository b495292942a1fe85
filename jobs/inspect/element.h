// inspect --param NAME --at I,J.
#pragma once

#include <string>

#include "jobs/inspect/output.h"
#include "runtime/checkpoint/reader.h"

namespace tessera::inspect {

/// The element of parameter `name` at the indices in `at`, one per dimension: which rank owns it, in
/// which file and at which byte each array has it, and its values, read with their checksum. Throws
/// ConfigError for another name, other indices.
void show_element(CheckpointReader& reader, const std::string& name, const std::string& at,
                  Output& out);

}  // namespace tessera::inspect
