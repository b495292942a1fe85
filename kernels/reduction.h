// Sums in a fixed order: column sums (bias gradients), and the exact sums of a step (squares of the
// gradient, losses) as fixed-point integers (kernels/base/fixed_point.h).
#pragma once

#include "kernels/device/tensor_view.h"

namespace tessera {

/// Elements whose squares are summed in f64 before they are exact.
inline constexpr Index kNormBlock = 1024;

/// Squares of each block of kNormBlock elements are summed in f64 in a fixed order (which one is
/// the backend's own), and every block's sum is added to `words` exactly. NaN or infinity in a
/// block counts one in the last word.
struct SumOfSquaresArgs {
  ConstTensorView values;  // [S] f32; the last block may be short
  TensorView words;        // [kFixedPointWords] i64 on the device, added to
};

/// The sum of a micro-batch's losses in f64 in a fixed order, added to `words` exactly.
struct LossSumArgs {
  ConstTensorView losses;  // [N] f32
  TensorView words;        // [kFixedPointWords] i64, added to
};

/// out[k] = sum_n x[n, k], in f32, rows in a fixed order that depends on N only.
struct ColumnSumArgs {
  ConstTensorView x;     // [N, K] f32 or bf16
  TensorView out;        // [K] f32 or bf16, written
  TensorView workspace;  // f32, column_sum_workspace(N, K) elements
};
/// Elements (f32) of workspace for ColumnSum, and for the gain gradients of rms_norm and rotary: a
/// fixed number of partial rows of K.
[[nodiscard]] Index column_sum_workspace(Index rows, Index columns);

/// One signature; a definition in kernels/cpu and one in kernels/cuda.
using SumOfSquaresFn = void(const SumOfSquaresArgs& args, Stream& stream);
using LossSumFn = void(const LossSumArgs& args, Stream& stream);
using ColumnSumFn = void(const ColumnSumArgs& args, Stream& stream);

namespace cpu {
SumOfSquaresFn sum_of_squares;
LossSumFn loss_sum;
ColumnSumFn column_sum;
}  // namespace cpu
namespace cuda {
SumOfSquaresFn sum_of_squares;
LossSumFn loss_sum;
ColumnSumFn column_sum;
}  // namespace cuda

}  // namespace tessera
