// Parameters from master weights as they are: after initialisation and loading, and for models that
// are only read.
//
//   param = master rounded half away from zero to param_values (kernels/device/master_code.h)
#pragma once

#include "kernels/device/tensor_view.h"

namespace tessera {

struct WriteParamsArgs {
  ConstTensorView master;  // [S] f32, read
  TensorView param;        // [S] bf16 or f32, written
  /// f32, or bf16: what a param of f32 is rounded to. A param of bf16 always is.
  DType param_values = DType::f32;
};

using WriteParamsFn = void(const WriteParamsArgs& args, Stream& stream);

namespace cpu {
WriteParamsFn write_params;
}
namespace cuda {
WriteParamsFn write_params;
}

}  // namespace tessera
