// The CUDA half of kernels/ in a build without CUDA: every function says so.
#include "kernels/attention.h"
#include "kernels/base/error.h"
#include "kernels/gemm_tuning.h"
#include "kernels/kernel_table.h"
#include "kernels/library_versions.h"

namespace tessera::cuda {
namespace {

[[noreturn]] void refuse() {
  throw ConfigError("this build has no CUDA: build with `cmake --preset cuda && cmake --build "
                    "build-cuda`, or use --device cpu",
                    TESSERA_HERE);
}

}  // namespace

const KernelTable& kernels() {
  refuse();
}

const GemmTuner& gemm_tuner() {
  refuse();
}

std::vector<std::string> library_versions() {
  refuse();
}

void prepare_attention(const AttentionForwardArgs& /*forward*/,
                       const AttentionBackwardArgs& /*backward*/, Stream& /*stream*/) {
  refuse();
}

}  // namespace tessera::cuda
