// Parameters from master weights as they are: after initialisation and loading, and for models that
// are only read.
//
//   param = master rounded half away from zero to the dtype of param (kernels/device/master_code.h)
#pragma once

#include "kernels/device/tensor_view.h"

namespace tessera {

struct WriteParamsArgs {
  ConstTensorView master;  // [S] f32, read
  TensorView param;        // [S] bf16 or f32, written
};

using WriteParamsFn = void(const WriteParamsArgs& args, Stream& stream);

namespace cpu {
WriteParamsFn write_params;
}
namespace cuda {
WriteParamsFn write_params;
}

}  // namespace tessera
