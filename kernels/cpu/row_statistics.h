// Statistics of a row that several CPU kernels share.
#pragma once

#include "kernels/device/stream.h"

namespace tessera::cpu {

/// 1 / sqrt(mean(x^2) + eps) over `count` elements: the mean in f64, rounded once at the end.
/// Compiled once, not inline, so that backward passes get forward's bits.
[[nodiscard]] float reciprocal_rms(const float* x, Index count, float eps);

}  // namespace tessera::cpu
