#include "kernels/quantize.h"

#include <string>

#include "kernels/base/error.h"
#include "kernels/require.h"

namespace tessera {
namespace {

bool is_float_type(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16;
}

bool is_code_type(DType dtype) {
  return dtype == DType::e4m3 || dtype == DType::e5m2;
}

}  // namespace

void require_abs_max(DeviceKind where, const AbsMaxArgs& args) {
  TESSERA_REQUIRE(is_float_type(args.x.dtype), "abs_max takes f32 or bf16");
  require_tensor_in(where, args.x, args.x.dtype, args.x.count(), "x");
  require_tensor_in(where, args.out, DType::f32, 1, "out");
}

DType require_quantize(DeviceKind where, const QuantizeArgs& args) {
  const bool are_codes = is_code_type(args.x.dtype);
  TESSERA_REQUIRE(args.x.shape.rank() == 2 && (is_float_type(args.x.dtype) || are_codes),
                  "quantize takes x as [N, K], f32 or bf16, or codes");
  TESSERA_REQUIRE(args.codes.data != nullptr || args.transposed.data != nullptr,
                  "quantize writes codes, or transposed ones, or both");
  const Index count = args.x.count();
  const DType dtype = args.codes.data != nullptr ? args.codes.dtype : args.transposed.dtype;
  TESSERA_REQUIRE(is_code_type(dtype),
                  "codes are of e4m3 or e5m2, not " + std::string(dtype_name(dtype)));
  TESSERA_REQUIRE(!are_codes || (args.codes.data == nullptr && args.counts.data == nullptr &&
                                 args.x.dtype == dtype),
                  "codes are transposed as they are");
  require_tensor_in(where, args.x, args.x.dtype, count, "x");
  require_tensor_in(where, args.abs_max, DType::f32, 1, "abs_max");
  require_tensor_in(where, args.scale, DType::f32, 1, "scale");
  if (args.codes.data != nullptr) {
    require_tensor_in(where, args.codes, dtype, count, "codes");
  }
  if (args.transposed.data != nullptr) {
    require_tensor_in(where, args.transposed, dtype, count, "transposed");
  }
  if (args.counts.data != nullptr) {
    require_tensor_in(where, args.counts, DType::i64, kQuantizeCounts, "counts");
  }
  return dtype;
}

}  // namespace tessera
