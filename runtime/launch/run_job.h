// The frame of every executable: start MPI within a time limit, run the body, and if it throws, say
// so once and end all ranks.
#pragma once

#include <functional>

#include "runtime/launch/agree.h"
#include "runtime/launch/start_guard.h"

namespace tessera {

class MpiSession;

/// Returns what main returns: the body's value, or the exit status of what it threw (failure_of).
///
/// Once the body has returned, ranks agree on whether rank 0's output through std::cout or stdout
/// was lost (status 4). What say_text (log.h) writes does not count: training continues without it.
///
/// Where the start takes longer than `start_seconds` the process ends with status 8: until the body
/// calls end() of the guard, which it does as soon as a watchdog looks after it or nothing is left
/// that could wait for ranks that have not started.
///
/// A failure that every rank has (marked as agreed, or the same error on all within a second) is
/// written once, by rank 0, and every rank returns. One that this rank has alone is written by this
/// rank, with what it was doing, and MPI is aborted with its status, so that peers blocked in a
/// collective end too; MPI is not finalised then and this call does not return. Also refuses a
/// launcher that does not belong to MPI (mpi_session.h), with status 2.
int run_job(int argc, char** argv, double start_seconds,
            const std::function<int(MpiSession&, StartGuard&)>& body);

}  // namespace tessera
