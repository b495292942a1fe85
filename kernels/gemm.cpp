#include "kernels/gemm.h"

#include <bit>
#include <cstdint>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/require.h"

namespace tessera {
namespace {

// `rows` of op(a), or columns of op(b).
void require_scales_of(DeviceKind where, const GemmOperand& operand, Index rows, const char* name) {
  TESSERA_REQUIRE(operand.dtype == DType::e4m3 || operand.dtype == DType::e5m2,
                  fmt::format("'{}' has scales, and is {}: needed is e4m3 or e5m2", name,
                              dtype_name(operand.dtype)));
  require_tensor_in(where, operand.scales, DType::f32,
                    operand.scale_mode == ScaleMode::tensor ? 1 : rows,
                    fmt::format("scales of {}", name).c_str());
  TESSERA_REQUIRE(
      std::bit_cast<std::uintptr_t>(operand.scales.data) % kScaleAlignment == 0,
      fmt::format("the scales of '{}' begin at a multiple of {} bytes", name, kScaleAlignment));
}

}  // namespace

void require_scales(DeviceKind where, const GemmArgs& args) {
  if (!is_scaled(args)) {
    TESSERA_REQUIRE(args.accumulation == Accumulation::full,
                    "fast accumulation is for operands of 8 bits with scales");
    return;
  }
  TESSERA_REQUIRE(args.a.scale_mode == args.b.scale_mode,
                  "both operands have one scale, or both have one for each row");
  require_scales_of(where, args.a, args.m, "a");
  require_scales_of(where, args.b, args.n, "b");
}

std::size_t gemm_workspace_bytes(DeviceKind kind) {
  // What cuBLASLt's fastest split-K kernels on H100 ask for at most; NVIDIA recommends 32 MiB.
  constexpr std::size_t kCudaWorkspace = std::size_t{64} << 20U;
  return kind == DeviceKind::cuda ? kCudaWorkspace : 0;
}

std::size_t scaled_gemm_workspace_bytes(DeviceKind kind, Index m, Index n, Index k) {
  return kind == DeviceKind::cpu ? static_cast<std::size_t>((m + n) * k) * sizeof(float)
                                 : gemm_workspace_bytes(kind);
}

}  // namespace tessera
