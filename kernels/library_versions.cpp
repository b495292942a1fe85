#include "kernels/library_versions.h"

namespace tessera {

std::vector<std::string> kernel_libraries(DeviceKind kind) {
  return kind == DeviceKind::cpu ? cpu::library_versions() : cuda::library_versions();
}

}  // namespace tessera
