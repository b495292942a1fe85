#include "kernels/library_versions.h"

#include <fstream>
#include <string_view>

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>
#include <fmt/format.h>

namespace tessera::cuda {
namespace {

// 12040 is 12.4.
std::string cuda_text(int version) {
  constexpr int kMajor = 1000;
  constexpr int kMinor = 10;
  return fmt::format("CUDA {}.{}", version / kMajor, version % kMajor / kMinor);
}

// "550.54.15" of "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 ...": the first
// word of digits and points. Empty where the driver tells nothing.
std::string driver_text() {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    if (word.find('.') != std::string::npos &&
        word.find_first_not_of("0123456789.") == std::string::npos) {
      return word;
    }
  }
  return {};
}

}  // namespace

std::vector<std::string> library_versions() {
  constexpr std::size_t kMinor = 100;
  std::vector<std::string> all;
  if (int version = 0; cudaRuntimeGetVersion(&version) == cudaSuccess) {
    all.push_back(cuda_text(version));
  }
  if (int version = 0; cudaDriverGetVersion(&version) == cudaSuccess) {
    const std::string own = driver_text();
    all.push_back(fmt::format("driver {}({})", own.empty() ? own : own + " ", cuda_text(version)));
  }
  // cuBLASLt counts as 120403 for 12.4.3, cuDNN since 9 as 90100 for 9.1.0, before as 8907 for 8.9.7
  const std::size_t blas = cublasLtGetVersion();
  all.push_back(fmt::format("cublasLt {}.{}.{}", blas / (kMinor * kMinor), blas / kMinor % kMinor,
                            blas % kMinor));
  constexpr std::size_t kNine = 90'000;
  const std::size_t dnn = cudnnGetVersion();
  const std::size_t major = dnn >= kNine ? kMinor * kMinor : 1000;
  all.push_back(fmt::format("cuDNN {}.{}.{}", dnn / major, dnn % major / kMinor, dnn % kMinor));
  return all;
}

}  // namespace tessera::cuda
