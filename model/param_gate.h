// The other half of what the model needs of the rest: a unit's parameters may be read only once
// they are there. See grad_sink.h for the gradients.
#pragma once

#include "model/param_layout.h"

namespace tessera {

class ParamGate {
 public:
  virtual ~ParamGate() = default;
  /// The parameters of `unit`, laid out as its ParamUnit. Work queued in `compute` after this call
  /// starts once they are complete.
  [[nodiscard]] virtual ConstTensorView wait(UnitId unit, Stream& compute) = 0;
};

}  // namespace tessera
