// The second half of every sum over rows: the partial rows that a first kernel left in a workspace,
// added up in a fixed order.
#pragma once

#include "kernels/device/tensor_view.h"

namespace tessera::cuda {

struct PartialRows {
  const float* sums;  // row p begins at p * stride
  Index rows;
  Index stride;
};

/// out[k] = sum_p sums[p, k] in f32, in an order that depends on the number of rows only; 0 without
/// rows.
///
///   out  [K]  f32 or bf16, written
void add_partial_rows(const PartialRows& partial, const TensorView& out, Stream& stream);
/// The same for two outputs of one dtype, the columns of `second` after those of `out`; where
/// `second.data` is null, for one.
void add_partial_rows(const PartialRows& partial, const TensorView& out, const TensorView& second,
                      Stream& stream);

}  // namespace tessera::cuda
