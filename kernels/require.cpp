#include "kernels/require.h"

#include <string>

#include "kernels/base/error.h"

namespace tessera {
namespace {

[[noreturn]] void refuse(DeviceKind where, const ConstTensorView& view, DType dtype, Index count,
                         const char* wanted, const char* name) {
  const bool on_cpu = where == DeviceKind::cpu;
  throw ContractError(std::string(on_cpu ? "CPU" : "CUDA") + " kernel: '" + name + "' has " +
                          std::to_string(view.count()) + " elements of " +
                          std::string(dtype_name(view.dtype)) +
                          (view.data == nullptr ? " and no memory" : "") + ", needed are " +
                          wanted + std::to_string(count) + " of " + std::string(dtype_name(dtype)) +
                          (on_cpu ? " in host memory" : " in device memory"),
                      TESSERA_HERE);
}

bool is_usable(DeviceKind where, const ConstTensorView& view, DType dtype, Index count) {
  return view.dtype == dtype && view.device.kind == where && (view.data != nullptr || count == 0);
}

}  // namespace

void require_tensor_in(DeviceKind where, const ConstTensorView& view, DType dtype, Index count,
                       const char* name) {
  if (view.count() != count || !is_usable(where, view, dtype, count)) {
    refuse(where, view, dtype, count, "", name);
  }
}

void require_room_in(DeviceKind where, const ConstTensorView& view, DType dtype, Index count,
                     const char* name) {
  if (view.count() < count || !is_usable(where, view, dtype, count)) {
    refuse(where, view, dtype, count, "at least ", name);
  }
}

}  // namespace tessera
