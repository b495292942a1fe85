// The largest magnitude of what a kernel has written, for those that report it (abs_max of their
// arguments).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/cpu/partition.h"
#include "kernels/device/tensor_view.h"

namespace tessera::cpu {

inline float as_f32(float value) {
  return value;
}
inline float as_f32(BFloat16 value) {
  return to_float(value);
}

/// max |x| of `count` elements; infinity or NaN where there is one. Magnitudes are compared as
/// integers, among which NaN is the largest.
template <typename T>
[[nodiscard]] float largest_magnitude(const T* x, Index count) {
  constexpr std::uint32_t kMagnitude = 0x7FFFFFFFU;
  std::uint32_t largest = 0;
#pragma omp parallel for simd schedule(static) \
    reduction(max                              \
              : largest) if (parallel          \
                             : count > kParallelElements)
  for (Index i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(as_f32(x[i])) & kMagnitude);
  }
  return std::bit_cast<float>(largest);
}

/// Writes max |x| to `out` unless its data is null.
inline void report_abs_max(const ConstTensorView& x, const TensorView& out) {
  if (out.data != nullptr) {
    *data_as<float>(out) = largest_magnitude(data_as<float>(x), x.count());
  }
}

}  // namespace tessera::cpu
