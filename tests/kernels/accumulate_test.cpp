#include "kernels/accumulate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

// The sum of one step in f32, in the order that accumulate.h gives: [total, S] -> [S].
std::vector<double> reference(const std::vector<double>& slices, Index total, Index width,
                              Index reduce_group) {
  std::vector<double> result;
  for (Index s = 0; s < width; ++s) {
    float sum = 0;
    for (Index begin = 0; begin < total; begin += reduce_group) {
      const Index end = std::min(total, begin + reduce_group);
      auto group = static_cast<float>(slices[static_cast<std::size_t>(begin * width + s)]);
      for (Index b = begin + 1; b < end; ++b) {
        group += static_cast<float>(slices[static_cast<std::size_t>(b * width + s)]);
      }
      sum = begin == 0 ? group : sum + group;
    }
    result.push_back(sum);
  }
  return result;
}

// The same step in calls of `rows_per_call` micro-batches, the last one short.
std::vector<double> in_calls(TestBench& bench, TestTensor& slices, Index total, Index width,
                             Index reduce_group, Index rows_per_call) {
  TestTensor sum = bench.poisoned(DType::f32, {width});
  TestTensor partial = bench.poisoned(DType::f32, {width});
  const bool cuts_groups = reduce_group > 1 && rows_per_call % reduce_group != 0;
  for (Index first = 0; first < total; first += rows_per_call) {
    const Index count = std::min(rows_per_call, total - first);
    bench.kernels().accumulate(
        {.slices =
             slices.view().slice(first * width, (first + count) * width).reshaped({count, width}),
         .sum = sum.view(),
         .partial = cuts_groups ? partial.view() : TensorView{},
         .first = first,
         .count = count,
         .total = total,
         .reduce_group = reduce_group},
        bench.stream());
  }
  return bench.read(sum.view());
}

constexpr std::array<Index, 4> kWidths = {1, 7, 2049, 4111};

}  // namespace

BOOST_AUTO_TEST_SUITE(accumulate)

BOOST_AUTO_TEST_CASE(sums_have_the_same_bits_however_the_micro_batches_are_cut_into_calls) {
  TestBench bench(test_device());
  constexpr std::array<Index, 5> kTotals = {1, 2, 7, 12, 13};
  // both backends take slices of both types
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Index width : kWidths) {
      for (const Index total : kTotals) {
        TestTensor slices = bench.normal(dtype, {total, width}, 100);
        for (const Index reduce_group : {1, 3, 4}) {
          const std::vector<double> expected = reference(slices.values, total, width, reduce_group);
          for (Index rows_per_call = 1; rows_per_call <= total; ++rows_per_call) {
            BOOST_TEST_CONTEXT(width << " elements, " << total << " micro-batches, groups of "
                                     << reduce_group << ", calls of " << rows_per_call) {
              check_equal(in_calls(bench, slices, total, width, reduce_group, rows_per_call),
                          expected, "sum");
            }
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(rows_beyond_count_are_not_read) {
  TestBench bench(test_device());
  constexpr Index kWidth = 100;
  TestTensor slices = bench.normal(DType::f32, {4, kWidth});
  poison_async(slices.view().slice(2 * kWidth, 4 * kWidth), bench.stream());
  TestTensor sum = bench.poisoned(DType::f32, {kWidth});
  bench.kernels().accumulate({.slices = slices.view(),
                              .sum = sum.view(),
                              .partial = {},
                              .first = 0,
                              .count = 2,
                              .total = 2,
                              .reduce_group = 1},
                             bench.stream());
  std::vector<double> two(slices.values.begin(), slices.values.begin() + 2 * kWidth);
  check_equal(bench.read(sum.view()), reference(two, 2, kWidth, 1), "sum");
}

BOOST_AUTO_TEST_CASE(cast_rows_rounds_to_nearest_even_and_keeps_distances) {
  TestBench bench(test_device());
  constexpr Index kRows = 5;
  for (const Index columns : {1, 7, 64, 333}) {
    for (const DType from_type : {DType::f32, DType::bf16}) {
      for (const DType to_type : {DType::f32, DType::bf16}) {
        const Index from_stride = columns + 3;
        const Index to_stride = columns + 5;
        TestTensor from = bench.normal(from_type, {kRows, from_stride});
        TestTensor to =
            bench.of(std::vector<double>(kRows * to_stride, -7.0), to_type, {kRows, to_stride});
        bench.kernels().cast_rows({.from = from.view(),
                                   .to = to.view(),
                                   .rows = kRows,
                                   .columns = columns,
                                   .from_stride = from_stride,
                                   .to_stride = to_stride},
                                  bench.stream());
        std::vector<double> expected(kRows * to_stride, -7.0);
        for (Index r = 0; r < kRows; ++r) {
          for (Index k = 0; k < columns; ++k) {
            expected[static_cast<std::size_t>(r * to_stride + k)] =
                from.values[static_cast<std::size_t>(r * from_stride + k)];
          }
        }
        check_equal(bench.read(to.view()), rounded(expected, to_type), "rows");
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(cast_rows_rounds_ties_to_even_and_keeps_what_is_not_finite) {
  TestBench bench(test_device());
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<double> numbers = {1 + 0x1p-8,      // tie, down to even
                                       1 + 3 * 0x1p-8,  // tie, up to even
                                       1 + 0x1.01p-8,   // above the tie
                                       -(1 + 0x1p-8),
                                       3.4e38,    // beyond bf16: infinity
                                       0x1p-133,  // a denormal of bf16
                                       0,
                                       kInfinity,
                                       -kInfinity,
                                       std::nan("")};
  const std::vector<double> expected = {1,        1 + 0x1p-6, 1 + 0x1p-7, -1,         kInfinity,
                                        0x1p-133, 0,          kInfinity,  -kInfinity, std::nan("")};
  const auto count = static_cast<Index>(numbers.size());
  TestTensor from = bench.of(numbers, DType::f32, {1, count});
  TestTensor to = bench.poisoned(DType::bf16, {1, count});
  bench.kernels().cast_rows({.from = from.view(),
                             .to = to.view(),
                             .rows = 1,
                             .columns = count,
                             .from_stride = count,
                             .to_stride = count},
                            bench.stream());
  check_equal(bench.read(to.view()), expected, "bf16");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
