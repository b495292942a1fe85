// Where attention reads q and k: in the fused rows, or in rows of their own. For kernels/cpu/ and
// kernels/cuda/ only.
#pragma once

#include "kernels/attention.h"

namespace tessera {

/// Elements of a fused row: q heads, k heads, v heads. Gradients have such rows always.
[[nodiscard]] inline Index fused_width(const AttentionShape& shape) {
  return (shape.query_heads + 2 * shape.kv_heads) * shape.head_dim;
}

/// Rows that begin with the q heads, then the k heads.
struct QkRows {
  ConstTensorView rows;
  Index width;  // elements of a row
};

/// Of AttentionForwardArgs or AttentionBackwardArgs.
template <typename Args>
[[nodiscard]] QkRows qk_rows(const Args& args) {
  const AttentionShape& shape = args.shape;
  if (args.rotated_qk.data == nullptr) {
    return {.rows = args.qkv, .width = fused_width(shape)};
  }
  return {.rows = args.rotated_qk, .width = (shape.query_heads + shape.kv_heads) * shape.head_dim};
}

}  // namespace tessera
