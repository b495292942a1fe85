// Command lines for people to copy: the one that starts the run of a plan, and the one of this start.
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

/// The command line that started this program on so many ranks, word by word, quoted for a shell,
/// behind the launcher that its environment speaks of ("mpirun -np 2", "srun -n 2"; one rank that no
/// launcher started: none).
[[nodiscard]] std::string launch_command(int argc, const char* const* argv, int ranks);
/// The same, as it continues what this start leaves: without `--resume none`, which its own steps would
/// make an error.
[[nodiscard]] std::string continue_command(int argc, const char* const* argv, int ranks,
                                           const RunConfig& options);

}  // namespace tessera
