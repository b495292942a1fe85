// What a step is: its manifest, shards, units and parameters; and whether it is whole.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "jobs/inspect/output.h"
#include "runtime/checkpoint/reader.h"

namespace tessera::inspect {

void describe(const CheckpointReader& reader, Output& out);

/// What --verify found in `bytes` of arrays.
void say_verified(const std::vector<std::string>& damages, std::uint64_t bytes, Output& out);

}  // namespace tessera::inspect
