// The CUDA half of kernels/ in a build without CUDA: every function says so.
#include "kernels/attention.h"
#include "kernels/device/no_cuda.h"
#include "kernels/gemm_tuning.h"
#include "kernels/kernel_table.h"
#include "kernels/library_versions.h"

namespace tessera::cuda {

const KernelTable& kernels() {
  refuse_without_cuda();
}

const GemmTuner& gemm_tuner() {
  refuse_without_cuda();
}

std::vector<std::string> library_versions() {
  refuse_without_cuda();
}

void prepare_attention(const AttentionForwardArgs& /*forward*/,
                       const AttentionBackwardArgs& /*backward*/, Stream& /*stream*/) {
  refuse_without_cuda();
}

}  // namespace tessera::cuda
