// Ordered sums of gradient slices, and conversions between element types.
//
// A step's gradient is the sum over micro-batches 0 .. total-1, first folded in groups of
// `reduce_group` consecutive numbers, then the groups in their order, all in f32:
//
//   group[g] = ((x[gG] + x[gG+1]) + ...)        sum = ((group[0] + group[1]) + ...)
//
// so the result is bit-identical whichever ranks computed which micro-batches.
#pragma once

#include "kernels/device/tensor_view.h"

namespace tessera {

struct AccumulateArgs {
  ConstTensorView slices;  // [W, S] f32 or bf16: row w belongs to micro-batch first + w
  TensorView sum;          // [S] f32: written by the first group of a step, then added to
  TensorView partial;      // [S] f32, the group under way between calls; data null if reduce_group
                           // is 1 or if no group is cut by a call (W % reduce_group == 0)
  Index first;             // number of row 0's micro-batch
  Index count;             // rows that take part, 1 <= count <= W; the others are not read
  Index total;             // micro-batches of the step
  Index reduce_group;      // 1 or more
};

/// Rows of K elements with their own distances, converted to the type of `to` (f32 -> bf16 rounds
/// to nearest even). Also packs pieces of slices: from [W, S] columns to [W, K].
struct CastRowsArgs {
  ConstTensorView from;  // f32 or bf16; row r begins at element r * from_stride
  TensorView to;         // f32 or bf16; row r begins at element r * to_stride
  Index rows;
  Index columns;  // K
  Index from_stride;
  Index to_stride;
};

/// One signature; a definition in kernels/cpu and one in kernels/cuda.
using AccumulateFn = void(const AccumulateArgs& args, Stream& stream);
using CastRowsFn = void(const CastRowsArgs& args, Stream& stream);

namespace cpu {
AccumulateFn accumulate;
CastRowsFn cast_rows;
}  // namespace cpu
namespace cuda {
AccumulateFn accumulate;
CastRowsFn cast_rows;
}  // namespace cuda

}  // namespace tessera
