#include "kernels/gemm.h"

namespace tessera {

std::size_t gemm_workspace_bytes(DeviceKind kind) {
  // What cuBLASLt's fastest split-K kernels on H100 ask for at most; NVIDIA recommends 32 MiB.
  constexpr std::size_t kCudaWorkspace = std::size_t{64} << 20U;
  return kind == DeviceKind::cuda ? kCudaWorkspace : 0;
}

}  // namespace tessera
