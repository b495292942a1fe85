// The command line that starts the run of a plan, for people to copy.
#pragma once

#include <span>
#include <string>

#include "runtime/run/config.h"

namespace tessera {

/// "mpirun -np N train --model ... ": options as they were given, without those of the plan that a run
/// has no use for, those that have their default, and those that `options` do not use; with `changes`
/// ("--micro-batch 1", "no --grad-offload") made, as `options` have them. Data and folder that are not
/// given are named as what is to be filled in. Quoted for a shell.
[[nodiscard]] std::string start_command(const RunConfig& options, int ranks,
                                        std::span<const std::string> changes = {});

}  // namespace tessera
