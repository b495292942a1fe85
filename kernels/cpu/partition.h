// How the CPU kernels cut their work for the threads of a rank (--threads, OpenMP). What is cut
// must not change the result: sums over rows are cut into a number of pieces that depends on the
// shape only, and a thread takes whole pieces.
#pragma once

#include <algorithm>

#include "kernels/device/stream.h"

namespace tessera::cpu {

/// Elements below which waking a second thread costs more than it saves (about 10 microseconds).
inline constexpr Index kParallelElements = Index{1} << 15;

struct Range {
  Index begin;
  Index end;
};

/// Piece `part` of [0, total) cut into `parts` pieces whose lengths differ by one at most.
[[nodiscard]] inline Range piece(Index total, Index parts, Index part) {
  return {total * part / parts, total * (part + 1) / parts};
}

/// Pieces of a sum over rows: enough for the threads of a node, few enough that their partial sums
/// stay in the cache. At most the number of partial rows that column_sum_workspace provides.
inline constexpr Index kRowPieces = 64;

[[nodiscard]] inline Index row_pieces(Index rows) {
  return std::min(rows, kRowPieces);
}

}  // namespace tessera::cpu
