// GEMM, row-major:  d = op(a) op(b) + beta * c + bias
//
// oneDNN on the CPU (f32), cuBLASLt on CUDA (f32 without TF32, and bf16 with f32 accumulation).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/tensor_view.h"

namespace tessera {

enum class Transpose : std::uint8_t { no, yes };

struct GemmArgs {
  Index m;
  Index n;
  Index k;
  Transpose transpose_a;  // no: a is [m, k]; yes: a is [k, m]
  Transpose transpose_b;  // no: b is [k, n]; yes: b is [n, k]
  ConstTensorView a;      // f32 or bf16
  Index lda;              // elements from one row of `a` as stored to the next
  ConstTensorView b;      // dtype of a
  Index ldb;
  float beta;            // 0: c is not read
  ConstTensorView c;     // [m, n] with ldd, dtype of d; the same memory as d, or another
  ConstTensorView bias;  // [n] dtype of a, added to every row; data null for none
  TensorView d;          // [m, n] f32, or the dtype of a; written
  Index ldd;
  TensorView workspace;  // u8, gemm_workspace_bytes(kind); CUDA only, data may be null on the CPU
};

/// Fixed, so that the library's choice never depends on free memory. 0 on the CPU.
[[nodiscard]] std::size_t gemm_workspace_bytes(DeviceKind kind);

/// One signature; a definition in kernels/cpu and one in kernels/cuda.
using GemmFn = void(const GemmArgs& args, Stream& stream);

namespace cpu {
GemmFn gemm;
}  // namespace cpu
namespace cuda {
GemmFn gemm;
}  // namespace cuda

}  // namespace tessera
