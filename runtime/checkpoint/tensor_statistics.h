// What is known of the numbers of a checkpoint, tensor by tensor, in bounded memory: statistics,
// histograms, hashes, differences. All results are the same whatever the number of ranks that wrote
// it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/reader.h"

namespace tessera {

/// Of the finite numbers of a tensor. Without any, all but the counts are 0.
struct TensorStatistics {
  Index count = 0;      // all numbers
  Index nonfinite = 0;  // NaN and infinite ones
  double min = 0;
  double max = 0;
  double mean = 0;
  double norm = 0;  // L2
};

/// How many of these numbers are NaN or infinite.
[[nodiscard]] Index count_nonfinite(std::span<const float> values) noexcept;

/// Takes a tensor's numbers piece by piece, in order. The sums are made in f64, in an order that
/// depends on the numbers' places alone, so long as all pieces but the last are multiples of
/// kLanes.
class StatisticsSum {
 public:
  static constexpr std::size_t kLanes = 16;
  void add(std::span<const float> values) noexcept;
  void add(const StatisticsSum& other) noexcept;
  [[nodiscard]] TensorStatistics result() const noexcept;

 private:
  static constexpr std::size_t kTileElements = 2048;  // in the first-level cache
  void add_tile(std::span<const float> values) noexcept;

  Index count_ = 0;
  Index nonfinite_ = 0;
  std::array<float, kLanes> min_ = filled(1);
  std::array<float, kLanes> max_ = filled(-1);
  std::array<double, kLanes> sum_{};
  std::array<double, kLanes> squares_{};
  static constexpr std::array<float, kLanes> filled(float sign) {
    std::array<float, kLanes> values{};
    values.fill(sign * std::numeric_limits<float>::infinity());
    return values;
  }
};

/// How two tensors of one shape differ.
struct TensorDifference {
  Index count = 0;
  Index differing = 0;         // numbers whose bits differ
  Index incomparable = 0;      // of these, those where either is not finite
  double max_absolute = 0;     // over those that can be compared
  double max_relative = 0;     // |a - b| / max(|a|, |b|)
  std::uint64_t max_ulps = 0;  // floats between them; 0 for 0.0 and -0.0
};
void add_difference(std::span<const float> a, std::span<const float> b,
                    TensorDifference& difference) noexcept;

/// Counts of finite numbers in bins of equal width; the last bin holds its upper end too.
struct Histogram {
  double low;
  double high;
  std::vector<Index> bins;
  void add(std::span<const float> values) noexcept;
};

/// Hands a parameter's numbers on, piece by piece and in order.
void scan_param(CheckpointReader& reader, StateArray array, const ParamRow& param,
                const std::function<void(std::span<const float>)>& take);

/// XXH3-128 of the numbers of each tensor, and of all of them: array by array, each in layout
/// order.
struct CheckpointHashes {
  Hash128 overall;
  /// By place in reader.arrays(), then as the table's parameters; aliases too.
  std::vector<std::vector<Hash128>> tensors;
};
[[nodiscard]] CheckpointHashes hash_tensors(CheckpointReader& reader,
                                            const ByteProgress& progress = {});
/// Statistics of each tensor, by place in reader.arrays(), then as the table's parameters. An alias
/// has those of what it stands for.
[[nodiscard]] std::vector<std::vector<TensorStatistics>> tensor_statistics(
    CheckpointReader& reader, const ByteProgress& progress = {});

}  // namespace tessera
