#include "kernels/nf4.h"

#include <cstdint>

#include "kernels/base/error.h"
#include "kernels/require.h"

namespace tessera {

void require_widen_nf4(DeviceKind where, const WidenNf4Args& args) {
  constexpr std::uintptr_t kAlignment = 16;
  TESSERA_REQUIRE(args.out.dtype == DType::f32 || args.out.dtype == DType::bf16,
                  "widen_nf4 writes f32 or bf16");
  require_tensor_in(where, args.out, args.out.dtype, args.out.count(), "out");
  require_tensor_in(where, args.packed, DType::u8, nf4_parts(args.out.count()).bytes, "packed");
  TESSERA_REQUIRE(reinterpret_cast<std::uintptr_t>(args.packed.data) % kAlignment == 0,
                  "packed tensors begin at multiples of 16 bytes");
}

}  // namespace tessera
