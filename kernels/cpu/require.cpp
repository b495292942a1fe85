#include "kernels/cpu/require.h"

#include <string>

namespace tessera::cpu {
namespace {

[[noreturn]] void refuse(const ConstTensorView& view, DType dtype, Index count, const char* wanted,
                         const char* name) {
  throw ContractError(
      "CPU kernel: '" + std::string(name) + "' has " + std::to_string(view.count()) +
          " elements of " + std::string(dtype_name(view.dtype)) +
          (view.data == nullptr ? " and no memory" : "") + ", wanted are " + wanted +
          std::to_string(count) + " of " + std::string(dtype_name(dtype)) + " in host memory",
      TESSERA_HERE);
}

bool is_usable(const ConstTensorView& view, DType dtype, Index count) {
  return view.dtype == dtype && view.device.kind == DeviceKind::cpu &&
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

}  // namespace tessera::cpu
