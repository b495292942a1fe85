// What the backward pass needs of the rest of the system: a place to put one unit's gradients and
// a way to say that they are complete. The model knows nothing of ranks, shards or optimizers.
#pragma once

#include "model/param_layout.h"

namespace tessera {

class GradSink {
 public:
  virtual ~GradSink() = default;
  /// Storage for the gradients of `unit`, laid out as its ParamUnit. Valid until `commit`. Its
  /// dtype is the unit's place's: f32 in the buffer of the embedding and LM-head gradient, the
  /// gradients' type in a slot. Its contents are undefined and must all be written: matrix
  /// gradients by a GEMM with beta = 0, norm gains by a reduction in a fixed order (contract
  /// C-GRADWS-001; tests poison it with NaN). Work queued in `compute` after this call starts once
  /// the storage is free.
  [[nodiscard]] virtual TensorView acquire(UnitId unit, Stream& compute) = 0;
  /// The gradients of `unit` are complete once the work queued in `compute` so far is done.
  /// Requires: one commit per acquire; units in descending order within a micro-step, but for a
  /// tied embedding, which is acquired first and committed last.
  virtual void commit(UnitId unit, Stream& compute) = 0;
};

}  // namespace tessera
