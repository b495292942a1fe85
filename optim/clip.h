// Clipping by the global norm (Pascanu et al. 2013, arXiv:1211.5063), as PyTorch's clip_grad_norm_:
// gradients are multiplied by min(1, limit / (norm + 1e-6)).
#pragma once

#include <algorithm>

namespace tessera {

/// `limit` 0 turns clipping off. Requires: norm is finite.
[[nodiscard]] inline double clip_factor(double norm, double limit) noexcept {
  constexpr double kTiny = 1e-6;
  return limit == 0 ? 1.0 : std::min(1.0, limit / (norm + kTiny));
}

}  // namespace tessera
