// Causal self-attention of a few tokens over keys and values that are kept: for decoding.
//
//   out[r] = softmax_s(scale * q[r] . k[s]) v,  s <= position + r
//            and s > position + r - window, where there is a sliding window
//
// A row's result is bit-identical whatever the other rows are: its sums go over the keys in their
// order, in f32 with an online softmax (as kernels/attention.h), in blocks whose places do not
// depend on the call. So tokens that come one by one give what they give together.
#pragma once

#include "kernels/device/tensor_view.h"

namespace tessera {

struct AttentionCachedArgs {
  Index rows;           // R
  Index query_heads;    // Hq, a multiple of kv_heads
  Index kv_heads;       // Hkv
  Index head_dim;       // D; at most 256 on CUDA
  Index position;       // of row 0 in the sequence
  float scale;          // 1 / sqrt(D)
  ConstTensorView qkv;  // [R, (Hq + 2 Hkv) * D] f32 or bf16, rotary embedding applied
  TensorView cache;     // [capacity, 2 Hkv * D] same dtype: keys, then values. Rows [0, position)
                        // are read; rows [position, position + R) are written with those of qkv
  TensorView out;       // [R, Hq * D] same dtype, written
  Index window = 0;     // a token sees itself and the window - 1 before it; 0: all before it
};

/// One signature; a definition in kernels/cpu and one in kernels/cuda.
using AttentionCachedFn = void(const AttentionCachedArgs& args, Stream& stream);

namespace cpu {
AttentionCachedFn attention_cached;
}  // namespace cpu
namespace cuda {
AttentionCachedFn attention_cached;
}  // namespace cuda

}  // namespace tessera
