// How the CUDA library's attention is cut so that its workspace keeps within AttentionOptions'
// slice_bytes. A pure function of the shape, known in builds without CUDA too. For
// kernels/attention.cpp and kernels/cuda/ only.
#pragma once

#include <cstddef>

#include "kernels/attention.h"

namespace tessera {

/// Slices of `sequences` sequences with all their heads; or, where one sequence is already too
/// much, of one sequence with the query heads of `groups` key/value heads. The last ones may be
/// smaller.
struct AttentionSlices {
  Index sequences;
  Index groups;       // kv_heads unless a sequence is cut
  std::size_t bytes;  // upper bound of the backward workspace of one slice
};

/// Throws ConfigError if not even one key/value head of one sequence fits, or if a slice would
/// begin where cuDNN cannot read.
[[nodiscard]] AttentionSlices attention_slices(const AttentionShape& shape,
                                               const AttentionOptions& options);

/// Heads of more elements are refused on CUDA.
inline constexpr Index kMaxCudaHeadDim = 256;
/// Heads of other sizes are refused on CUDA: accesses of 16 bytes.
inline constexpr Index kCudaHeadDimUnit = 8;

}  // namespace tessera
