// NCCL's half of make_communicator in a build without CUDA.
#include "collectives/communicator.h"
#include "kernels/base/error.h"

namespace tessera {

std::unique_ptr<Communicator> make_nccl_communicator(MpiSession& /*session*/, Device /*device*/,
                                                     const CommunicatorOptions& /*options*/) {
  throw ConfigError("this build has no CUDA: build with `cmake --preset cuda && cmake --build "
                    "build-cuda`, or use --device cpu",
                    TESSERA_HERE);
}

std::string nccl_library() {
  return {};
}

}  // namespace tessera
