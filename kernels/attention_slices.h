// How the CUDA library's attention is cut so that its workspace keeps within AttentionOptions'
// slice_bytes. A pure function of the shape, known in builds without CUDA too. For
// kernels/attention.cpp and kernels/cuda/ only.
#pragma once

#include <cstddef>

#include "kernels/attention.h"

namespace tessera {

/// Slices of `sequences` sequences with all their heads; or, where one sequence is already too
/// much, of one sequence with the query heads of `groups` key/value heads; or, where one key/value
/// head is, the same with the sequence in tiles. The last ones may be smaller.
struct AttentionSlices {
  Index sequences;
  Index groups;       // kv_heads unless a sequence is cut
  Index tile;         // queries of one call of the backward pass; 0: all
  std::size_t bytes;  // upper bound of the backward workspace of one slice
};

/// A tile of a deterministic backward pass takes `tile` queries (the last one fewer) and as many keys, or, with a sliding
/// window, all keys that its queries see. Its size depends on the shape and the limit alone, as the
/// bits of its sums do. Where slices would begin at places that cuDNN cannot read, a tile may be a whole
/// sequence. Throws ConfigError if nothing fits.
[[nodiscard]] AttentionSlices attention_slices(const AttentionShape& shape,
                                               const AttentionOptions& options);

/// Where a backward pass in tiles keeps what it needs: bytes from the begin of the workspace. H is
/// the number of query heads of a slice, K that of its key/value heads.
struct AttentionTileRoom {
  Index keys;              // of one call, at most
  std::size_t key_sums;    // f32 [2, T, K * D]: sums of d_k, then of d_v
  std::size_t query_sums;  // f32 [tile, H * D]: sums of d_q; no bytes with a window
  std::size_t d_q;         // bf16 [tile, H * D]: of one call; no bytes with a window
  std::size_t d_k;         // bf16 [keys, K * D]
  std::size_t d_v;         // bf16 [keys, K * D]
  std::size_t lse;         // f32 [H, lse_row]
  std::size_t library;     // what is left: cuDNN's
  Index lse_row;           // T, and up to 3 elements more
};
/// Requires: slices.tile > 0.
[[nodiscard]] AttentionTileRoom attention_tile_room(const AttentionShape& shape,
                                                    const AttentionSlices& slices);

/// Heads of more elements are refused on CUDA.
inline constexpr Index kMaxCudaHeadDim = 256;
/// Heads of other sizes are refused on CUDA: accesses of 16 bytes.
inline constexpr Index kCudaHeadDimUnit = 8;

}  // namespace tessera
