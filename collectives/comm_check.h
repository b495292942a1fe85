// The check around every MPI call. NCCL's stands in nccl_check.h, so that this one needs no CUDA.
#pragma once

#include <mpi.h>

#include "kernels/base/error.h"

namespace tessera {

/// Throws CommError: "CALL failed: MPI's own message".
[[noreturn]] void throw_mpi_error(int code, const char* call, SourceLocation where);
/// For destructors, which must not throw: writes the same as a warning.
void log_mpi_error(int code, const char* call) noexcept;

inline void check_mpi(int code, const char* call, SourceLocation where) {
  if (code != MPI_SUCCESS) {
    throw_mpi_error(code, call, where);
  }
}

}  // namespace tessera

#define TESSERA_CHECK_MPI(call) ::tessera::check_mpi((call), #call, TESSERA_HERE)
