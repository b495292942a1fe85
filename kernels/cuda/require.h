// Checks of the tensors that a CUDA kernel is given, for its host function: once a call, before the
// launch. kernels/cpu/require.h is the same for the CPU's kernels.
#pragma once

#include "kernels/device/error.h"
#include "kernels/device/tensor_view.h"

namespace tessera::cuda {

/// Throws ContractError naming `name` unless `view` is device memory of `count` elements of
/// `dtype`.
void require_tensor(const ConstTensorView& view, DType dtype, Index count, const char* name);

/// The same for at least `count` elements: workspaces, and matrices with a distance between rows.
void require_room(const ConstTensorView& view, DType dtype, Index count, const char* name);

/// True if `data` lies at a multiple of a 16-byte access. Null does.
[[nodiscard]] bool is_vector_aligned(const void* data) noexcept;

/// Calls `body` with a value of the element type, float or BFloat16. Throws ContractError naming
/// `name` for another type.
template <typename Body>
void with_element_type(DType dtype, const char* name, Body body) {
  if (dtype == DType::f32) {
    body(float{});
  } else if (dtype == DType::bf16) {
    body(BFloat16{});
  } else {
    throw ContractError("CUDA kernel: '" + std::string(name) + "' is of " +
                            std::string(dtype_name(dtype)) + ", wanted is f32 or bf16",
                        TESSERA_HERE);
  }
}

}  // namespace tessera::cuda
