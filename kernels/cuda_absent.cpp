// The CUDA half of kernels/ in a build without CUDA: every function says so.
#include "kernels/base/error.h"
#include "kernels/gemm_tuning.h"
#include "kernels/kernel_table.h"

namespace tessera::cuda {
namespace {

[[noreturn]] void refuse() {
  throw ConfigError("this build has no CUDA: configure with -DTESSERA_CUDA=ON, or use --device cpu",
                    TESSERA_HERE);
}

}  // namespace

const KernelTable& kernels() {
  refuse();
}

const GemmTuner& gemm_tuner() {
  refuse();
}

}  // namespace tessera::cuda
