// GEMM, row-major:  d = alpha * op(a) op(b) + beta * c + bias
//
// oneDNN on the CPU (f32), cuBLASLt on CUDA (f32 without TF32; bf16 and 8 bits with f32
// accumulation).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/tensor_view.h"

namespace tessera {

enum class Transpose : std::uint8_t { no, yes };

/// What the scales of an operand belong to. `row`: a row of op(a), a column of op(b), so that both
/// lie along k.
enum class ScaleMode : std::uint8_t { none, tensor, row };

/// `fast`, with operands of 8 bits only, lets a card add parts of the sums with fewer bits than f32
/// has: for a small k. The CPU adds in f32 either way.
enum class Accumulation : std::uint8_t { full, fast };

/// Where scales begin is a multiple of this, in bytes: at others cuBLASLt 13.1 proposes algorithms
/// and then runs none (NOT_SUPPORTED).
inline constexpr std::size_t kScaleAlignment = 16;

/// A factor of a GEMM: what is stored, and what it is multiplied by. A plain view has no scales.
struct GemmOperand : ConstTensorView {
  ScaleMode scale_mode = ScaleMode::none;
  ConstTensorView scales;  // f32: [1] for `tensor`, [m] or [n] for `row`; data null for `none`;
                           // begins at a multiple of kScaleAlignment

  GemmOperand() noexcept = default;
  // NOLINTNEXTLINE(google-explicit-constructor): elements as they are, which is what a view says
  GemmOperand(const ConstTensorView& elements) : ConstTensorView(elements) {}
  // NOLINTNEXTLINE(google-explicit-constructor): the same
  GemmOperand(const TensorView& elements) : ConstTensorView(elements) {}
  GemmOperand(const ConstTensorView& elements, ScaleMode mode, const ConstTensorView& the_scales)
      : ConstTensorView(elements), scale_mode(mode), scales(the_scales) {}
};

/// Operands are f32, or on CUDA bf16, of one type and without scales; or e4m3 and e5m2 with scales.
/// Those CUDA multiplies on sm_89 and later (`row`: sm_90, cuBLAS 12.9), not e5m2 by e5m2, where
/// both lie along k (transpose_a no, transpose_b yes), sizes and distances between rows are
/// multiples of 16, and data is aligned to 16 bytes.
struct GemmArgs {
  Index m;
  Index n;
  Index k;
  Transpose transpose_a;  // no: a is [m, k]; yes: a is [k, m]
  Transpose transpose_b;  // no: b is [k, n]; yes: b is [n, k]
  GemmOperand a;
  Index lda;  // elements from one row of `a` as stored to the next
  GemmOperand b;
  Index ldb;
  float beta;            // 0: c is not read
  ConstTensorView c;     // [m, n] with ldd, dtype of d; the same memory as d, or another
  ConstTensorView bias;  // [n], added to every row; data null for none. dtype of a and d; with
                         // operands of 8 bits bf16 on CUDA, f32 on the CPU
  TensorView d;          // [m, n] f32, or the dtype of a, or bf16 with operands of 8 bits; written
  Index ldd;
  TensorView workspace;  // u8, gemm_workspace_bytes(kind), with scales scaled_gemm_workspace_bytes;
                         // data may be null where that is 0
  Accumulation accumulation = Accumulation::full;
  float alpha = 1;
};

/// Fixed, so that the library's choice never depends on free memory. 0 on the CPU.
[[nodiscard]] std::size_t gemm_workspace_bytes(DeviceKind kind);
/// The same for operands with scales. The CPU multiplies both in f32, as they are without scales:
/// (m + n) k numbers.
[[nodiscard]] std::size_t scaled_gemm_workspace_bytes(DeviceKind kind, Index m, Index n, Index k);

[[nodiscard]] inline bool is_scaled(const GemmArgs& args) noexcept {
  return args.a.scale_mode != ScaleMode::none || args.b.scale_mode != ScaleMode::none;
}
/// Throws ContractError unless types, scales and accumulation of the operands go together, as
/// GemmArgs says for either kind of device.
void require_scales(DeviceKind where, const GemmArgs& args);

/// One signature; a definition in kernels/cpu and one in kernels/cuda.
using GemmFn = void(const GemmArgs& args, Stream& stream);

namespace cpu {
GemmFn gemm;
}  // namespace cpu
namespace cuda {
GemmFn gemm;
}  // namespace cuda

}  // namespace tessera
