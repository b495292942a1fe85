// Token embedding: rows of a table, and the sum of the rows' gradients in a fixed order.
#pragma once

#include <cstddef>

#include "kernels/device/tensor_view.h"

namespace tessera {

struct EmbeddingForwardArgs {
  ConstTensorView tokens;  // [N] i32, each in [0, V)
  // [N] i32: 0 .. N-1 sorted by token, as below, so that a row that comes often is read once; or {}
  ConstTensorView order;
  ConstTensorView table;  // [V, C] f32 or bf16
  TensorView out;         // [N, C] same dtype, written
};

/// d_table[tokens[n]] += d_out[n], for each row in ascending n: no atomics.
struct EmbeddingBackwardArgs {
  ConstTensorView tokens;  // [N] i32
  ConstTensorView order;   // [N] i32: 0 .. N-1 sorted by (token, position), made by the data loader
  ConstTensorView d_out;   // [N, C] f32 or bf16
  TensorView d_table;      // [V, C] f32, added to
  TensorView workspace;    // u8, embedding_workspace_bytes(N, C)
};

/// Bytes of workspace, the same on both backends: partial sums of long runs of one token.
[[nodiscard]] std::size_t embedding_workspace_bytes(Index tokens, Index width);

/// One signature; a definition in kernels/cpu and one in kernels/cuda.
using EmbeddingForwardFn = void(const EmbeddingForwardArgs& args, Stream& stream);
using EmbeddingBackwardFn = void(const EmbeddingBackwardArgs& args, Stream& stream);

namespace cpu {
EmbeddingForwardFn embedding_forward;
EmbeddingBackwardFn embedding_backward;
}  // namespace cpu
namespace cuda {
EmbeddingForwardFn embedding_forward;
EmbeddingBackwardFn embedding_backward;
}  // namespace cuda

}  // namespace tessera
