// Orthogonalisation of a matrix by Newton-Schulz iterations: with X = U S V^T it becomes
// approximately U V^T, its polar factor (Jordan et al. 2024, kellerjordan.github.io/posts/muon).
//
//   X = X / |X|                         the Frobenius norm: singular values of at most 1
//   `steps` times:
//     A = X X^T                         or X^T X where there are more rows than columns
//     X = a X + (b A + c A A) X         or X (b A + c A A)
//
//   a, b, c = 3.4445, -4.7750, 2.0315
//
// Each step maps a singular value s to a s + b s^3 + c s^5, which is steep at 0: five bring those from
// 0.002 to 1 into [0.68, 1.21], where more leave them. A singular value of 0 stays 0.
//
// Matrices and products are stored in the matrix's type and added in f32 (kernels/gemm.h).
#pragma once

#include <array>

#include "kernels/kernel_table.h"

namespace tessera {

/// a, b and c.
inline constexpr std::array<float, 3> kNewtonSchulz = {3.4445F, -4.7750F, 2.0315F};

struct NewtonSchulzArgs {
  TensorView matrix;     // [R, C] f32, or on CUDA bf16; read and written
  int steps;             // 1 or more
  TensorView workspace;  // u8, newton_schulz_workspace_bytes; begins at a multiple of 256 bytes
};

/// Of a matrix of these rows and columns.
[[nodiscard]] std::size_t newton_schulz_workspace_bytes(DeviceKind kind, DType dtype, Index rows,
                                                        Index columns);
/// Multiplications and additions of its GEMMs.
[[nodiscard]] double newton_schulz_flops(Index rows, Index columns, int steps) noexcept;

/// Queues it in `stream`. Deterministic: the bits depend on the matrix, and on GPUs on their kind.
/// Throws ContractError where the shape has no rows or columns or the workspace is too small.
void newton_schulz(const KernelTable& kernels, const NewtonSchulzArgs& args, Stream& stream);

}  // namespace tessera
