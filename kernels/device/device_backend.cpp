#include "kernels/device/device_backend.h"

namespace tessera {

const DeviceBackend& device_backend(DeviceKind kind) {
  return kind == DeviceKind::cpu ? cpu::backend() : cuda::backend();
}

int device_count(DeviceKind kind) {
  return kind == DeviceKind::cpu ? 1 : cuda::count();
}

DeviceInfo device_info(Device device) {
  return device.kind == DeviceKind::cpu ? cpu::info() : cuda::info(device.ordinal);
}

void use_device(Device device) {
  if (device.kind == DeviceKind::cuda) {
    cuda::use(device.ordinal);
  }
}

}  // namespace tessera
