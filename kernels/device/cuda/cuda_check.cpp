#include "kernels/device/cuda/cuda_check.h"

#include <array>
#include <exception>

#include "kernels/base/log.h"
#include "kernels/base/process_exit.h"

namespace tessera::cuda {
namespace {

std::string current_device() {
  int ordinal = 0;
  if (cudaGetDevice(&ordinal) != cudaSuccess) {
    return "an unknown CUDA device";
  }
  return "CUDA device " + std::to_string(ordinal);
}

std::string failure_text(const char* call, const std::string& name,
                         const std::string& explanation) {
  return std::string(call) + " failed on " + current_device() + ": " + name +
         (explanation.empty() ? "" : " (" + explanation + ")");
}

std::string failure_text(cudaError_t code, const char* call) {
  return failure_text(call, cudaGetErrorName(code), cudaGetErrorString(code));
}

}  // namespace

void check(cudaError_t code, const char* call, SourceLocation where) {
  if (code == cudaSuccess) {
    return;
  }
  park_if_exiting();
  // Takes the error off the runtime, so that a later check of a launch does not report it again.
  (void)cudaGetLastError();
  throw DeviceError(failure_text(code, call), where);
}

void check(cublasStatus_t code, const char* call, SourceLocation where) {
  if (code != CUBLAS_STATUS_SUCCESS) {
    park_if_exiting();
    throw DeviceError(
        failure_text(call, cublasLtGetStatusName(code), cublasLtGetStatusString(code)), where);
  }
}

void check(cudnnStatus_t code, const char* call, SourceLocation where) {
  if (code == CUDNN_STATUS_SUCCESS) {
    return;
  }
  park_if_exiting();
  constexpr std::size_t kMessageLength = 512;
  std::array<char, kMessageLength> message{};
  cudnnGetLastErrorString(message.data(), message.size());
  throw DeviceError(failure_text(call, cudnnGetErrorString(code), message.data()), where);
}

void log_failure(cudaError_t code, const char* call) noexcept {
  if (code == cudaSuccess || code == cudaErrorCudartUnloading) {
    return;
  }
  park_if_exiting();
  try {
    log_line(LogLevel::error, failure_text(code, call));
  } catch (const std::exception&) {  // no memory for a message: there is nobody left to tell
    return;
  }
}

}  // namespace tessera::cuda
