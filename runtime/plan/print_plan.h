// train --plan.
#pragma once

#include "collectives/mpi_session.h"
#include "runtime/run/config.h"

namespace tessera {

/// Prints what a run of these options takes, on rank 0. Returns the exit status: 2 where it does
/// not fit. Collective. Throws ConfigError, FormatError, agreed.
[[nodiscard]] int print_plan(MpiSession& session, const RunConfig& options);

}  // namespace tessera
