// Comparison of what a kernel gave with what was computed in f64, each element within a bound that
// the test computes: units of roundoff times the number of roundings.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device/tensor_view.h"

namespace tessera::test {

/// The seed of all random data of the tests; printed with every failure.
inline constexpr std::uint64_t kSeed = 20261127;

/// Half a unit in the last place of 1: the relative error of one rounding to this type.
[[nodiscard]] double unit_roundoff(DType dtype);

/// Empty where |actual[i] - expected[i]| <= bounds[i] for all i (or both are NaN, or the same
/// infinity); else one line: what, seed, rank, how many differ, the first index, both values,
/// bound. `bounds` has one entry for each element, or one for all.
[[nodiscard]] std::string difference(const std::vector<double>& actual,
                                     const std::vector<double>& expected,
                                     const std::vector<double>& bounds, std::string_view what);

/// Derivatives of `f` at `x` by central differences, one element after another, in f64. `step` is
/// the distance to each side; the result's error is about step^2 f''' + 1e-16 |f| / step.
[[nodiscard]] std::vector<double> central_differences(
    const std::function<double(const std::vector<double>&)>& f, std::vector<double> x,
    double step = 1e-5);

}  // namespace tessera::test
