#include "kernels/device/error.h"
#include "kernels/kernel_table.h"

namespace tessera::cuda {

const KernelTable& kernels() {
  throw ConfigError("this build has no CUDA: configure with -DTESSERA_CUDA=ON, or use --device cpu",
                    TESSERA_HERE);
}

}  // namespace tessera::cuda
