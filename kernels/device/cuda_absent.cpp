// The CUDA half of device_backend.h in a build without CUDA: every function says so.
#include "kernels/base/error.h"
#include "kernels/device/device_backend.h"

namespace tessera::cuda {
namespace {

[[noreturn]] void refuse() {
  throw ConfigError("this build has no CUDA: build with `cmake --preset cuda && cmake --build "
                    "build-cuda`, or use --device cpu",
                    TESSERA_HERE);
}

}  // namespace

const DeviceBackend& backend() {
  refuse();
}

int count() {
  refuse();
}

DeviceInfo info(int /*ordinal*/) {
  refuse();
}

void use(int /*ordinal*/) {
  refuse();
}

}  // namespace tessera::cuda
