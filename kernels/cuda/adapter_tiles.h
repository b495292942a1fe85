// How adapter_gradients.cu cuts its work, and where in shared memory and in a warp's registers each
// number is. Plain functions of integers.
//
// d_y is cut into tiles of 128 tokens x 128 columns. A unit is 128 tokens x 512 columns, a group of
// columns; units are numbered down the tokens of a group, then group after group, and every block
// takes as many consecutive ones.
#pragma once

#include <algorithm>

#include "kernels/base/round_up.h"
#include "kernels/base/types.h"

namespace tessera::cuda {

inline constexpr int kAdapterWarps = 8;
inline constexpr int kTileTokens = 128;
inline constexpr int kTileColumns = 128;
inline constexpr int kGroupTiles = 4;
inline constexpr int kGroupColumns = kGroupTiles * kTileColumns;

/// Of a product m16n8k16: rows of its first factor, columns of its second, and what it adds over.
inline constexpr int kProductRows = 16;
inline constexpr int kProductColumns = 8;
inline constexpr int kProductDepth = 16;
static_assert(kAdapterWarps * kProductRows == kTileTokens);
static_assert(kAdapterWarps * kProductRows == kTileColumns);

/// Blocks at most: one for each multiprocessor of an H100. A constant, so that the order of sums
/// depends on shapes only.
inline constexpr Index kAdapterBlocks = 132;

// ---- cutting ----------------------------------------------------------------------------------

/// Of one pass, whose partial sums are fewer than an int holds.
struct AdapterSplit {
  int token_tiles;
  int groups;
  int units_of_block;
  int blocks;
};
[[nodiscard]] constexpr AdapterSplit adapter_split(Index tokens, Index groups) {
  const Index token_tiles = divide_up(tokens, Index{kTileTokens});
  const Index units = token_tiles * groups;
  const Index units_of_block = divide_up(units, kAdapterBlocks);
  return {.token_tiles = static_cast<int>(token_tiles),
          .groups = static_cast<int>(groups),
          .units_of_block = static_cast<int>(units_of_block),
          .blocks = static_cast<int>(divide_up(units, units_of_block))};
}

/// A block leaves a partial d_B of each group that it has units of, 512 rows of it, at number
/// block + group: no two have the same.
struct PartialRange {
  int first;
  int count;
};
[[nodiscard]] constexpr PartialRange partials_of_group(const AdapterSplit& split, int group) {
  const int first_block = group * split.token_tiles / split.units_of_block;
  const int last_block = ((group + 1) * split.token_tiles - 1) / split.units_of_block;
  return {.first = first_block + group, .count = last_block - first_block + 1};
}

/// Where partial sums are stored in the workspace, in f32: first those of d_h, one [N, width] for
/// each group, behind one of the groups before; then those of d_B. No fewer groups need more.
struct AdapterRoom {
  Index hidden_stride;
  Index hidden_count;
  Index b_stride;
  Index b_count;
  [[nodiscard]] constexpr Index elements() const {
    return hidden_stride * hidden_count + b_stride * b_count;
  }
};
[[nodiscard]] constexpr AdapterRoom adapter_room(Index tokens, Index width, Index groups) {
  const Index units = divide_up(tokens, Index{kTileTokens}) * groups;
  return {.hidden_stride = tokens * width,
          .hidden_count = 1 + groups,
          .b_stride = Index{kGroupColumns} * width,
          .b_count = std::min(units, kAdapterBlocks) + groups - 1};
}
/// Groups that one pass takes, so that its partial sums fit into `elements`; 0 where none does. All
/// passes but the last take as many.
[[nodiscard]] constexpr Index adapter_pass_groups(Index tokens, Index width, Index groups,
                                                  Index elements) {
  Index most = groups;
  while (most > 0 && adapter_room(tokens, width, most).elements() > elements) {
    --most;
  }
  return most == 0 ? 0 : divide_up(groups, divide_up(groups, most));
}

// ---- shared memory ----------------------------------------------------------------------------

inline constexpr unsigned kChunkBytes = 16;  // of one access, 8 numbers of bf16
inline constexpr int kChunkElements = 8;
inline constexpr unsigned kTileRowBytes = kTileColumns * 2;
inline constexpr unsigned kTileBytes = kTileTokens * kTileRowBytes;

/// Offset of a chunk of a row. Chunks are swapped so that eight rows' chunks of one number, at a
/// multiple of eight rows, are in different banks.
template <int kChunks>
[[nodiscard]] constexpr unsigned chunk_offset(unsigned row, unsigned chunk) {
  static_assert(kChunks == 1 || kChunks == 2 || kChunks == 4 || kChunks % 8 == 0);
  constexpr unsigned kSwapped = kChunks < 8 ? kChunks : 8;
  return (row * kChunks + (chunk ^ (row / (8 / kSwapped) % kSwapped))) * kChunkBytes;
}

/// What a lane of ldmatrix names: a row and a chunk of it, from the first of either.
struct ChunkPlace {
  unsigned row;
  unsigned chunk;
};
/// For four matrices of 8 x 8: rows 0 to 15 of chunk 0, then of chunk 1. As they are, the first
/// factor of a product whose rows are stored as rows; transposed, the second factors of two
/// products, whose depth is stored as rows.
[[nodiscard]] constexpr ChunkPlace rows_first(unsigned lane) {
  return {.row = lane % 16, .chunk = lane / 16};
}
/// Chunks 0 and 1 of rows 0 to 7, then of rows 8 to 15. Transposed, the first factor of a product
/// whose depth is stored as rows.
[[nodiscard]] constexpr ChunkPlace chunks_first(unsigned lane) {
  return {.row = lane % 8 + lane / 16 * 8, .chunk = lane / 8 % 2};
}

// ---- results ----------------------------------------------------------------------------------

/// Of a product's result a lane has two neighbours of a row, and those eight rows below.
[[nodiscard]] constexpr unsigned result_row(unsigned lane) {
  return lane / 4;
}
[[nodiscard]] constexpr unsigned result_column(unsigned lane) {
  return lane % 4 * 2;
}
inline constexpr unsigned kLowerRows = 8;

}  // namespace tessera::cuda
