// kernels/require.h for the CPU's kernels, whose tensors are stored in host memory.
#pragma once

#include "kernels/base/error.h"
#include "kernels/device/tensor_view.h"
#include "kernels/require.h"

namespace tessera::cpu {

inline void require_tensor(const ConstTensorView& view, DType dtype, Index count,
                           const char* name) {
  require_tensor_in(DeviceKind::cpu, view, dtype, count, name);
}

inline void require_room(const ConstTensorView& view, DType dtype, Index count, const char* name) {
  require_room_in(DeviceKind::cpu, view, dtype, count, name);
}

inline void require_documents(const DocumentBounds& documents, Index batch, Index sequence) {
  require_documents_in(DeviceKind::cpu, documents, batch, sequence);
}

}  // namespace tessera::cpu
