// The fixed numbers behind the kernels' workspaces (workspaces.cpp), for the backends that fill
// them.
#pragma once

#include "kernels/device/stream.h"

namespace tessera {

/// Partial rows of a column sum, at most: four thread blocks for each of an H100's 132
/// multiprocessors. A constant, not read off the card, so that every card of a kind adds in the
/// same order.
inline constexpr Index kPartialRows = 528;

/// Partial sums of a matrix's squares: a constant for the same reason.
inline constexpr Index kMuonPartialSums = 1024;

/// Positions of the sorted order whose rows of embedding gradient are added up in one piece.
inline constexpr Index kEmbeddingRun = 32;

}  // namespace tessera
