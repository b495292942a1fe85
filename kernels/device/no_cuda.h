// What everything that stands for CUDA in a build without it says.
#pragma once

#include "kernels/base/error.h"

namespace tessera {

/// Throws ConfigError.
[[noreturn]] inline void refuse_without_cuda() {
  throw ConfigError("this build has no CUDA: build with `cmake --preset cuda && cmake --build "
                    "build-cuda`, or use --device cpu",
                    TESSERA_HERE);
}

}  // namespace tessera
