// Sizes of workspaces that are the same on both backends: fixed numbers of partial rows, so that
// the order of sums depends on the shapes only.
#include "kernels/workspaces.h"

#include <algorithm>

#include "kernels/embedding.h"
#include "kernels/muon.h"
#include "kernels/reduction.h"
#include "kernels/rotary.h"

namespace tessera {

Index column_sum_workspace(Index rows, Index columns) {
  return std::min(rows, kPartialRows) * columns;
}

Index rotary_workspace(const RotaryShape& shape) {
  return std::min(shape.tokens, kPartialRows) * 2 * shape.head_dim;
}

std::size_t muon_normalize_workspace_bytes() noexcept {
  return static_cast<std::size_t>(kMuonPartialSums) * sizeof(double);
}

std::size_t embedding_workspace_bytes(Index tokens, Index width) {
  return static_cast<std::size_t>((tokens / kEmbeddingRun + 1) * width) * sizeof(float);
}

}  // namespace tessera
