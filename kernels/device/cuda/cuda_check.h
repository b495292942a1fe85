// The checks that every CUDA, cuBLAS and cuDNN call stands in. For cuda/ folders and nccl_* files
// only: this header brings the vendor headers with it.
#pragma once

#include <string>

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#include "kernels/base/error.h"

namespace tessera::cuda {

/// Throw DeviceError with the text of the call, the name of the code, the library's explanation and
/// the current device. Nothing on success. `call` is a literal.
void check(cudaError_t code, const char* call, SourceLocation where);
void check(cublasStatus_t code, const char* call, SourceLocation where);
void check(cudnnStatus_t code, const char* call, SourceLocation where);

/// For destructors: logs what `check` would have thrown. Says nothing while the process ends and
/// the CUDA runtime is already unloaded.
void log_failure(cudaError_t code, const char* call) noexcept;

}  // namespace tessera::cuda

#define TESSERA_CHECK_CUDA(call) ::tessera::cuda::check((call), #call, TESSERA_HERE)
#define TESSERA_CHECK_CUBLAS(call) ::tessera::cuda::check((call), #call, TESSERA_HERE)
#define TESSERA_CHECK_CUDNN(call) ::tessera::cuda::check((call), #call, TESSERA_HERE)
