// Statistics of a row that several CPU kernels share.
#pragma once

#include <cmath>

#include "kernels/device/stream.h"

namespace tessera::cpu {

/// 1 / sqrt(mean(x^2) + eps) over `count` elements: the mean in f64, rounded once at the end.
[[nodiscard]] inline float reciprocal_rms(const float* x, Index count, float eps) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (Index i = 0; i < count; ++i) {
    const double value = x[i];
    sum += value * value;
  }
  return static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(count) + eps));
}

}  // namespace tessera::cpu
