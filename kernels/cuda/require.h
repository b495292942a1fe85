// kernels/require.h for the CUDA kernels, whose tensors are stored in device memory.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/error.h"
#include "kernels/device/tensor_view.h"
#include "kernels/require.h"

namespace tessera::cuda {

inline void require_tensor(const ConstTensorView& view, DType dtype, Index count,
                           const char* name) {
  require_tensor_in(DeviceKind::cuda, view, dtype, count, name);
}

inline void require_room(const ConstTensorView& view, DType dtype, Index count, const char* name) {
  require_room_in(DeviceKind::cuda, view, dtype, count, name);
}

/// True if `data` is at a multiple of a 16-byte access. Null does.
[[nodiscard]] inline bool is_vector_aligned(const void* data) noexcept {
  constexpr std::uintptr_t kVectorBytes = 16;
  return reinterpret_cast<std::uintptr_t>(data) % kVectorBytes == 0;
}

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
                            std::string(dtype_name(dtype)) + ", needed is f32 or bf16",
                        TESSERA_HERE);
  }
}

inline void require_documents(const DocumentBounds& documents, Index batch, Index sequence) {
  require_documents_in(DeviceKind::cuda, documents, batch, sequence);
}

}  // namespace tessera::cuda
