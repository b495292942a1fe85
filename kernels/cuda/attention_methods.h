// The two implementations of attention on CUDA, behind kernels/cuda/attention.cpp, which has
// checked the arguments.
#pragma once

#include "kernels/attention.h"
#include "kernels/attention_slices.h"

namespace tessera::cuda {

/// attention_builtin.cu: f32 and bf16, bit-identical always.
AttentionForwardFn builtin_attention_forward;
AttentionBackwardFn builtin_attention_backward;

/// attention_cudnn.cpp: bf16.
AttentionForwardFn cudnn_attention_forward;
AttentionBackwardFn cudnn_attention_backward;

/// attention_documents.cu: the same for a batch with documents. Requires: they are given.
AttentionForwardFn cudnn_documents_forward;
AttentionBackwardFn cudnn_documents_backward;

/// Has cuDNN compile every graph that batches with documents of this shape may ask for, and runs
/// each once on the memory of the arguments, whose results mean nothing.
void prepare_cudnn_documents(const AttentionForwardArgs& forward,
                             const AttentionBackwardArgs& backward, Stream& stream);

/// Which keys the queries of a tile see.
enum class TileMask : std::uint8_t {
  none,      // all
  diagonal,  // query i keys 0 .. i
  end,       // as if the last query and the last key were one token; with a window
};

/// A rectangle of queries and keys of one sequence, with some of its heads.
struct AttentionTile {
  AttentionShape shape;  // of the whole
  float scale;
  Index qk_row;  // of the rows that q and k are read from
  Index groups;  // key/value heads
  Index queries;
  Index keys;
  TileMask mask;
  const BFloat16* q;      // element 0 of the first query, likewise all that follow
  const BFloat16* k;      //
  const BFloat16* v;      // in fused rows
  const BFloat16* out;    //
  const BFloat16* d_out;  //
  const float* lse;       // [heads, lse_row]
  Index lse_row;
  BFloat16* d_q;  // written
  Index d_q_row;  // elements from row to row
  BFloat16* d_k;  // written
  BFloat16* d_v;  // written
  Index d_kv_row;
};

/// attention_cudnn.cpp: what a tile contributes to the gradients, in the deterministic order, given
/// outputs and log-sum-exps of whole rows. `workspace` is cuDNN's.
void cudnn_attention_tile_backward(const AttentionTile& tile, TensorView workspace, Stream& stream);

/// attention_tiles.cu: the backward pass of slices whose sequences are cut into tiles.
void attention_backward_in_tiles(const AttentionBackwardArgs& args, const AttentionSlices& slices,
                                 Stream& stream);

}  // namespace tessera::cuda
