// The frame of every executable: start MPI, run the body, and if it throws, say so once and end
// all ranks.
#pragma once

#include <functional>

#include "runtime/agree.h"

namespace tessera {

class MpiSession;

/// Returns what main returns: the body's value, or the exit status of what it threw (failure_of).
///
/// A failure that every rank has (marked as agreed, or the same error on all within a second) is
/// written once, by rank 0, and every rank returns. One that this rank has alone is written by this
/// rank, with what it was doing, and MPI is aborted with its status, so that peers blocked in a
/// collective end too; MPI is not finalised then and this call does not return. Also refuses a
/// launcher that does not belong to MPI (mpi_session.h), with status 2.
int run_job(int argc, char** argv, const std::function<int(MpiSession&)>& body);

}  // namespace tessera
