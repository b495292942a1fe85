// The CUDA half of device_backend.h in a build without CUDA: every function says so.
#include "kernels/device/device_backend.h"
#include "kernels/device/no_cuda.h"

namespace tessera::cuda {

const DeviceBackend& backend() {
  refuse_without_cuda();
}

int count() {
  refuse_without_cuda();
}

DeviceInfo info(int /*ordinal*/) {
  refuse_without_cuda();
}

void use(int /*ordinal*/) {
  refuse_without_cuda();
}

}  // namespace tessera::cuda
