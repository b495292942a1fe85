// NCCL's half of make_communicator in a build without CUDA.
#include "collectives/communicator.h"
#include "kernels/device/no_cuda.h"

namespace tessera {

std::unique_ptr<Communicator> make_nccl_communicator(MpiSession& /*session*/, Device /*device*/,
                                                     const CommunicatorOptions& /*options*/) {
  refuse_without_cuda();
}

std::string nccl_library() {
  return {};
}

}  // namespace tessera
