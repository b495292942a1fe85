#include "kernels/cuda/require.h"

#include <cstdint>
#include <string>

namespace tessera::cuda {
namespace {

constexpr std::uintptr_t kVectorBytes = 16;

[[noreturn]] void refuse(const ConstTensorView& view, DType dtype, Index count, const char* wanted,
                         const char* name) {
  throw ContractError(
      "CUDA kernel: '" + std::string(name) + "' has " + std::to_string(view.count()) +
          " elements of " + std::string(dtype_name(view.dtype)) +
          (view.data == nullptr ? " and no memory" : "") + ", wanted are " + wanted +
          std::to_string(count) + " of " + std::string(dtype_name(dtype)) + " in device memory",
      TESSERA_HERE);
}

bool is_usable(const ConstTensorView& view, DType dtype, Index count) {
  return view.dtype == dtype && view.device.kind == DeviceKind::cuda &&
         (view.data != nullptr || count == 0);
}

}  // namespace

void require_tensor(const ConstTensorView& view, DType dtype, Index count, const char* name) {
  if (view.count() != count || !is_usable(view, dtype, count)) {
    refuse(view, dtype, count, "", name);
  }
}

void require_room(const ConstTensorView& view, DType dtype, Index count, const char* name) {
  if (view.count() < count || !is_usable(view, dtype, count)) {
    refuse(view, dtype, count, "at least ", name);
  }
}

bool is_vector_aligned(const void* data) noexcept {
  return reinterpret_cast<std::uintptr_t>(data) % kVectorBytes == 0;
}

}  // namespace tessera::cuda
