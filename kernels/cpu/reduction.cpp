#include "kernels/reduction.h"

#include <algorithm>
#include <array>

#include "kernels/base/fixed_point.h"
#include "kernels/cpu/partition.h"
#include "kernels/cpu/require.h"
#include "kernels/device/cpu/submit.h"

namespace tessera::cpu {
namespace {

// Columns of a column sum that are added up together: their f64 sums stay on the stack.
constexpr Index kColumnBlock = 256;

using Words = std::array<std::int64_t, kFixedPointWords>;

void add_exactly(double value, std::int64_t* words) {
  fixed_point_parts(value, [words](int word, std::int64_t amount) { words[word] += amount; });
}

double block_of_squares(const float* values, Index count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (Index i = 0; i < count; ++i) {
    const double value = values[i];
    sum += value * value;
  }
  return sum;
}

void add_squares(const SumOfSquaresArgs& args) {
  const Index count = args.values.count();
  const Index blocks = (count + kNormBlock - 1) / kNormBlock;
  const auto* values = data_as<float>(args.values);
  auto* words = data_as<std::int64_t>(args.words);
#pragma omp parallel if (count > kParallelElements)
  {
    Words mine{};
#pragma omp for schedule(static) nowait
    for (Index block = 0; block < blocks; ++block) {
      const Index begin = block * kNormBlock;
      add_exactly(block_of_squares(values + begin, std::min(kNormBlock, count - begin)),
                  mine.data());
    }
// sums of integers: the order of the threads does not matter
#pragma omp critical(tessera_sum_of_squares)
    for (std::size_t i = 0; i < mine.size(); ++i) {
      words[i] += mine[i];
    }
  }
}

void add_losses(const LossSumArgs& args) {
  const Index count = args.losses.count();
  const auto* losses = data_as<float>(args.losses);
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (Index i = 0; i < count; ++i) {
    sum += static_cast<double>(losses[i]);
  }
  add_exactly(sum, data_as<std::int64_t>(args.words));
}

// Rows are added one after another, in f64: no partial sums, and no order that threads could
// change.
void sum_columns(const ColumnSumArgs& args) {
  const Index rows = args.x.shape[0];
  const Index width = args.x.shape[1];
  const Index blocks = (width + kColumnBlock - 1) / kColumnBlock;
  const auto* x = data_as<float>(args.x);
  auto* out = data_as<float>(args.out);
#pragma omp parallel for schedule(static) if (rows * width > kParallelElements)
  for (Index block = 0; block < blocks; ++block) {
    const Index begin = block * kColumnBlock;
    const Index count = std::min(kColumnBlock, width - begin);
    std::array<double, kColumnBlock> sums{};
    for (Index n = 0; n < rows; ++n) {
      const float* row = x + n * width + begin;
#pragma omp simd
      for (Index k = 0; k < count; ++k) {
        sums[static_cast<std::size_t>(k)] += static_cast<double>(row[k]);
      }
    }
    for (Index k = 0; k < count; ++k) {
      out[begin + k] = static_cast<float>(sums[static_cast<std::size_t>(k)]);
    }
  }
}

}  // namespace

void sum_of_squares(const SumOfSquaresArgs& args, Stream& stream) {
  require_tensor(args.values, DType::f32, args.values.count(), "values");
  require_tensor(args.words, DType::i64, kFixedPointWords, "words");
  submit(stream, [args] { add_squares(args); });
}

void loss_sum(const LossSumArgs& args, Stream& stream) {
  require_tensor(args.losses, DType::f32, args.losses.count(), "losses");
  require_tensor(args.words, DType::i64, kFixedPointWords, "words");
  submit(stream, [args] { add_losses(args); });
}

void column_sum(const ColumnSumArgs& args, Stream& stream) {
  TESSERA_REQUIRE(args.x.shape.rank() == 2, "column_sum takes x as [N, K]");
  require_tensor(args.x, DType::f32, args.x.count(), "x");
  require_tensor(args.out, DType::f32, args.x.shape[1], "out");
  submit(stream, [args] { sum_columns(args); });
}

}  // namespace tessera::cpu
