#include "runtime/checkpoint/tensor_statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

namespace tessera {
namespace {

/// Elements handed on at a time: 1 MiB, which stays in the cache, and a multiple of the lanes.
constexpr Index kPieceElements = Index{256} << 10U;

/// Whether the exponent is not all ones; unlike std::isfinite it vectorises.
bool is_finite(float value) noexcept {
  constexpr std::uint32_t kExponent = 0x7F800000U;
  return (std::bit_cast<std::uint32_t>(value) & kExponent) != kExponent;
}

/// Floats in their order as integers: neighbours differ by 1, both zeros are 0.
std::int64_t ordered(float value) noexcept {
  constexpr std::uint32_t kMagnitude = 0x7FFFFFFFU;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto magnitude = static_cast<std::int64_t>(bits & kMagnitude);
  return bits > kMagnitude ? -magnitude : magnitude;
}

/// Calls `each(number of the array, index, row)` for all tensors that are not aliases, array by
/// array: shards are read from front to back.
template <typename Each>
void for_each_tensor(const CheckpointReader& reader, Each each) {
  for (std::size_t array = 0; array < reader.arrays().size(); ++array) {
    for (std::size_t i = 0; i < reader.table().params.size(); ++i) {
      if (reader.table().params[i].alias_of.empty()) {
        each(array, i, reader.table().params[i]);
      }
    }
  }
}

/// Gives each alias the entry of what it stands for.
template <typename T>
void fill_aliases(const ParamTable& table, std::vector<T>& entries) {
  for (std::size_t i = 0; i < entries.size(); ++i) {
    for (std::size_t j = 0; j < entries.size(); ++j) {
      if (table.params[i].alias_of == table.params[j].name) {
        entries[i] = entries[j];
      }
    }
  }
}

class Progress {
 public:
  Progress(const CheckpointReader& reader, const ByteProgress& report)
      : report_(report), total_(reader.data_bytes()) {}
  void add(std::size_t bytes) {
    done_ += bytes;
    if (report_) {
      report_(done_, total_);
    }
  }

 private:
  const ByteProgress& report_;
  std::uint64_t done_ = 0;
  std::uint64_t total_;
};

}  // namespace

Index count_nonfinite(std::span<const float> values) noexcept {
  constexpr std::uint32_t kExponent = 0x7F800000U;
  constexpr std::size_t kRun = std::size_t{1} << 20U;  // below 2^32, so that 32-bit sums suffice
  Index total = 0;
  for (std::size_t begin = 0; begin < values.size(); begin += kRun) {
    const std::span<const float> run = values.subspan(begin, std::min(kRun, values.size() - begin));
    std::uint32_t count = 0;
    for (const float value : run) {
      count += (std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent ? 1U : 0U;
    }
    total += static_cast<Index>(count);
  }
  return total;
}

void StatisticsSum::add(std::span<const float> values) noexcept {
  count_ += static_cast<Index>(values.size());
  while (values.size() >= kTileElements) {
    add_tile(values.first(kTileElements));
    values = values.subspan(kTileElements);
  }
  const std::size_t whole = values.size() / kLanes * kLanes;
  add_tile(values.first(whole));
  if (whole < values.size()) {
    // Filled up with numbers that do not count; they change neither sums nor extremes.
    std::array<float, kLanes> rest{};
    rest.fill(std::numeric_limits<float>::quiet_NaN());
    const std::size_t count = values.size() - whole;
    std::copy_n(values.data() + whole, count, rest.begin());
    add_tile(rest);
    nonfinite_ -= static_cast<Index>(kLanes - count);
  }
}

/// One loop a result, each of which vectorises and keeps its accumulators in registers.
void StatisticsSum::add_tile(std::span<const float> values) noexcept {
  nonfinite_ += count_nonfinite(values);
  std::array<float, kTileElements> finite;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  for (std::size_t i = 0; i < values.size(); ++i) {
    finite[i] = is_finite(values[i]) ? values[i] : 0.0F;
  }
  auto low = min_;
  auto high = max_;
  for (std::size_t i = 0; i < values.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const float value = values[i + lane];
      const bool counts = is_finite(value);
      low[lane] = counts && value < low[lane] ? value : low[lane];
      high[lane] = counts && value > high[lane] ? value : high[lane];
    }
  }
  min_ = low;
  max_ = high;
  constexpr std::size_t kHalf = kLanes / 2;
  for (std::size_t half = 0; half < kLanes; half += kHalf) {
    std::array<double, kHalf> sum{};
    std::array<double, kHalf> squares{};
    std::copy_n(sum_.begin() + static_cast<std::ptrdiff_t>(half), kHalf, sum.begin());
    std::copy_n(squares_.begin() + static_cast<std::ptrdiff_t>(half), kHalf, squares.begin());
    for (std::size_t i = half; i < values.size(); i += kLanes) {
      for (std::size_t lane = 0; lane < kHalf; ++lane) {
        const auto number = static_cast<double>(finite[i + lane]);
        sum[lane] += number;
        squares[lane] += number * number;
      }
    }
    std::copy_n(sum.begin(), kHalf, sum_.begin() + static_cast<std::ptrdiff_t>(half));
    std::copy_n(squares.begin(), kHalf, squares_.begin() + static_cast<std::ptrdiff_t>(half));
  }
}

void StatisticsSum::add(const StatisticsSum& other) noexcept {
  count_ += other.count_;
  nonfinite_ += other.nonfinite_;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    min_[lane] = std::min(min_[lane], other.min_[lane]);
    max_[lane] = std::max(max_[lane], other.max_[lane]);
    sum_[lane] += other.sum_[lane];
    squares_[lane] += other.squares_[lane];
  }
}

TensorStatistics StatisticsSum::result() const noexcept {
  TensorStatistics result;
  result.count = count_;
  result.nonfinite = nonfinite_;
  const Index finite = count_ - nonfinite_;
  if (finite == 0) {
    return result;
  }
  result.min = static_cast<double>(*std::min_element(min_.begin(), min_.end()));
  result.max = static_cast<double>(*std::max_element(max_.begin(), max_.end()));
  double sum = 0;
  double squares = 0;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    sum += sum_[lane];
    squares += squares_[lane];
  }
  result.mean = sum / static_cast<double>(finite);
  result.norm = std::sqrt(squares);
  return result;
}

void add_difference(std::span<const float> a, std::span<const float> b,
                    TensorDifference& difference) noexcept {
  const std::size_t count = std::min(a.size(), b.size());
  difference.count += static_cast<Index>(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (std::bit_cast<std::uint32_t>(a[i]) == std::bit_cast<std::uint32_t>(b[i])) {
      continue;
    }
    ++difference.differing;
    if (!is_finite(a[i]) || !is_finite(b[i])) {
      ++difference.incomparable;
      continue;
    }
    const double absolute = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    const double scale =
        std::max(std::abs(static_cast<double>(a[i])), std::abs(static_cast<double>(b[i])));
    difference.max_absolute = std::max(difference.max_absolute, absolute);
    if (scale > 0) {
      difference.max_relative = std::max(difference.max_relative, absolute / scale);
    }
    const auto ulps = static_cast<std::uint64_t>(std::abs(ordered(a[i]) - ordered(b[i])));
    difference.max_ulps = std::max(difference.max_ulps, ulps);
  }
}

void Histogram::add(std::span<const float> values) noexcept {
  const auto last = static_cast<Index>(bins.size()) - 1;
  const double width = (high - low) / static_cast<double>(bins.size());
  for (const float value : values) {
    const auto number = static_cast<double>(value);
    if (is_finite(value) && number >= low && number <= high) {
      const Index bin = width > 0 ? static_cast<Index>((number - low) / width) : 0;
      ++bins[static_cast<std::size_t>(std::min(bin, last))];
    }
  }
}

void scan_param(CheckpointReader& reader, StateArray array, const ParamRow& param,
                const std::function<void(std::span<const float>)>& take) {
  std::vector<float> buffer;
  for (Index begin = 0; begin < param.count(); begin += kPieceElements) {
    buffer.resize(static_cast<std::size_t>(std::min(kPieceElements, param.count() - begin)));
    reader.read_param(array, param, begin, buffer);
    take(buffer);
  }
}

CheckpointHashes hash_tensors(CheckpointReader& reader, const ByteProgress& progress) {
  CheckpointHashes hashes;
  hashes.tensors.assign(reader.arrays().size(), std::vector<Hash128>(reader.table().params.size()));
  Progress report(reader, progress);
  Xxh3 overall;
  overall.reset128();
  for_each_tensor(reader, [&](std::size_t array, std::size_t i, const ParamRow& row) {
    Xxh3 tensor;
    tensor.reset128();
    scan_param(reader, reader.arrays().arrays()[array].array, row,
               [&](std::span<const float> values) {
                 overall.add(std::as_bytes(values));
                 tensor.add(std::as_bytes(values));
                 report.add(values.size_bytes());
               });
    hashes.tensors[array][i] = tensor.digest128();
  });
  for (std::vector<Hash128>& tensors : hashes.tensors) {
    fill_aliases(reader.table(), tensors);
  }
  hashes.overall = overall.digest128();
  return hashes;
}

std::vector<std::vector<TensorStatistics>> tensor_statistics(CheckpointReader& reader,
                                                             const ByteProgress& progress) {
  std::vector<std::vector<TensorStatistics>> statistics;
  Progress report(reader, progress);
  for (const StateArraySpec& spec : reader.arrays().arrays()) {
    // One sum for the elements of a tensor in a block, added up in their order: the result does not
    // depend on which thread was first.
    std::map<std::pair<std::size_t, Index>, StatisticsSum> sums;
    std::mutex mutex;
    reader.stream(spec.array, [&](const CheckpointReader::ParamPiece& piece) {
      StatisticsSum* sum = nullptr;
      {
        const std::lock_guard lock(mutex);
        sum = &sums[{piece.param, piece.run_begin}];
        report.add(piece.values.size_bytes());
      }
      sum->add(piece.values);
    });
    std::vector<StatisticsSum> totals(reader.table().params.size());
    for (const auto& [place, sum] : sums) {
      totals[place.first].add(sum);
    }
    std::transform(totals.begin(), totals.end(), std::back_inserter(statistics.emplace_back()),
                   [](const StatisticsSum& sum) { return sum.result(); });
  }
  for (std::vector<TensorStatistics>& tensors : statistics) {
    fill_aliases(reader.table(), tensors);
  }
  return statistics;
}

}  // namespace tessera
