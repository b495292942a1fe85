#include "kernels/kernel_table.h"

namespace tessera {

const KernelTable& kernel_table(DeviceKind kind) {
  return kind == DeviceKind::cpu ? cpu::kernels() : cuda::kernels();
}

}  // namespace tessera
