#include "kernels/precision.h"

#include <fmt/format.h>

#include "kernels/base/error.h"

namespace tessera {

void require_supported(const PrecisionPolicy& precision) {
  if (precision != precision_of(DType::f32) && precision != precision_of(DType::bf16)) {
    throw ConfigError(
        fmt::format("no kernel computes with parameters in {}, activations in {}, GEMM inputs in "
                    "{}, gradients in {} that are sent in {}: all of them are f32, or all bf16",
                    dtype_name(precision.params), dtype_name(precision.activations),
                    dtype_name(precision.gemm_inputs), dtype_name(precision.grads),
                    dtype_name(precision.grad_travel)),
        TESSERA_HERE);
  }
}

}  // namespace tessera
