// Checks of the tensors that a kernel is given, for its public function: once a call, before any
// work is queued. kernels/cpu/require.h and kernels/cuda/require.h say where the memory must be.
#pragma once

#include "kernels/device/tensor_view.h"
#include "kernels/document_bounds.h"

namespace tessera {

/// Throws ContractError naming `name` unless `view` is memory of `where` with `count` elements of
/// `dtype`.
void require_tensor_in(DeviceKind where, const ConstTensorView& view, DType dtype, Index count,
                       const char* name);

/// The same for at least `count` elements: workspaces, and matrices with a distance between rows.
void require_room_in(DeviceKind where, const ConstTensorView& view, DType dtype, Index count,
                     const char* name);

/// Throws unless `documents`, where they are given, cover `batch` sequences of `sequence` tokens as
/// DocumentBounds says. Of `begins` the host's copy is looked at.
void require_documents_in(DeviceKind where, const DocumentBounds& documents, Index batch,
                          Index sequence);

/// Throws unless `view`, an optional abs_max of a kernel's arguments, is [1] f32, or has null data.
inline void require_abs_max_in(DeviceKind where, const ConstTensorView& view) {
  if (view.data != nullptr) {
    require_tensor_in(where, view, DType::f32, 1, "abs_max");
  }
}

}  // namespace tessera
