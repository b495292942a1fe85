// Checks of the tensors that a CPU kernel is given, for its public function: once a call, before
// any work is queued.
#pragma once

#include "kernels/device/error.h"
#include "kernels/device/tensor_view.h"

namespace tessera::cpu {

/// Throws ContractError naming `name` unless `view` is host memory of `count` elements of `dtype`.
void require_tensor(const ConstTensorView& view, DType dtype, Index count, const char* name);

/// The same for at least `count` elements: workspaces, and matrices with a distance between rows.
void require_room(const ConstTensorView& view, DType dtype, Index count, const char* name);

}  // namespace tessera::cpu
