#include "kernels/cpu/row_statistics.h"

#include <cmath>

namespace tessera::cpu {

float reciprocal_rms(const float* x, Index count, float eps) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (Index i = 0; i < count; ++i) {
    const double value = x[i];
    sum += value * value;
  }
  return static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(count) + eps));
}

}  // namespace tessera::cpu
