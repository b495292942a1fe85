#include "kernels/adapter_gradients.h"

namespace tessera::cpu {

void adapter_gradients(const AdapterGradientsArgs& args, Stream& stream) {
  adapter_gradients_by_gemms(args, gemm, stream);
}

}  // namespace tessera::cpu
