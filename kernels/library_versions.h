// Names and versions of the libraries that kernels call, and of the GPU's driver: what a run is repeated
// with.
#pragma once

#include <string>
#include <vector>

#include "kernels/device/stream.h"

namespace tessera {

/// "oneDNN 2.6.0"; on CUDA "CUDA 12.4", "driver 550.54.15 (CUDA 12.4)", "cublasLt 12.4.5", "cuDNN
/// 9.1.0". What a library does not tell is left out.
[[nodiscard]] std::vector<std::string> kernel_libraries(DeviceKind kind);

/// The halves, in cpu/ and in cuda/ or cuda_absent.cpp.
namespace cpu {
[[nodiscard]] std::vector<std::string> library_versions();
}
namespace cuda {
[[nodiscard]] std::vector<std::string> library_versions();
}

}  // namespace tessera
