#include "kernels/adamw.h"

#include "kernels/base/error.h"
#include "kernels/require.h"

namespace tessera {

void require_moments(const AdamWArgs& args, DeviceKind where) {
  const Index count = args.grad.count();
  const DType type = args.m.dtype;
  TESSERA_REQUIRE(type == DType::f32 || type == DType::bf16 || type == DType::u8,
                  "moments of f32, bf16 or u8");
  require_tensor_in(where, args.m, type, count, "m");
  require_tensor_in(where, args.v, type, count, "v");
  if (type == DType::f32) {
    return;
  }
  TESSERA_REQUIRE(count % kMomentBlock == 0 && args.rounding.first % kMomentBlock == 0,
                  "rounded moments in whole blocks");
  if (type == DType::u8) {
    require_tensor_in(where, args.rounding.m_scales, DType::f32, count / kMomentBlock, "m_scales");
    require_tensor_in(where, args.rounding.v_scales, DType::f32, count / kMomentBlock, "v_scales");
  }
}

}  // namespace tessera
