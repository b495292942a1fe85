// The check around NCCL calls. For nccl_* files only.
#pragma once

#include <nccl.h>

#include "kernels/base/error.h"

namespace tessera {

/// Throws CommError: "CALL failed: NCCL's own message (its last warning)". Nothing on success, and
/// nothing on ncclInProgress, the answer of a communicator that does not block. `comm` may be null.
void check_nccl(ncclResult_t code, ncclComm_t comm, const char* call, SourceLocation where);
/// For destructors, which must not throw: writes the same as a warning.
void log_nccl_error(ncclResult_t code, const char* call) noexcept;

}  // namespace tessera

#define TESSERA_CHECK_NCCL(call) ::tessera::check_nccl((call), nullptr, #call, TESSERA_HERE)
