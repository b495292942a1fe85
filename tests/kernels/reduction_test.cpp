#include "kernels/reduction.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/fixed_point.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

TestTensor zero_words(TestBench& bench) {
  return bench.of(std::vector<double>(kFixedPointWords, 0.0), DType::i64, {kFixedPointWords});
}

double value_of(TestBench& bench, TestTensor& words) {
  return fixed_point_value(bench.read_words(words.view()).data());
}

std::vector<std::int64_t> squares_of(TestBench& bench, ConstTensorView values,
                                     const std::vector<Index>& cuts) {
  TestTensor words = zero_words(bench);
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    bench.kernels().sum_of_squares(
        {.values = values.slice(cuts[i], cuts[i + 1]), .words = words.view()}, bench.stream());
  }
  return bench.read_words(words.view());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(reduction)

BOOST_AUTO_TEST_CASE(sum_of_squares_equals_f64) {
  TestBench bench(test_device());
  for (const Index count : {1, 7, 1023, 1024, 1025, 5000, 100003}) {
    for (const double deviation : {1e-12, 1.0, 1e15}) {
      TestTensor values = bench.normal(DType::f32, {count}, deviation);
      long double expected = 0;
      for (const double value : values.values) {
        expected += static_cast<long double>(value) * value;
      }
      TestTensor words = zero_words(bench);
      bench.kernels().sum_of_squares({.values = values.view(), .words = words.view()},
                                     bench.stream());
      // a block's sum is rounded at most once an element; what is cut off lies below 2^-128 a block
      const Index blocks = count / kNormBlock + 1;
      const double bound = static_cast<double>(expected) * static_cast<double>(kNormBlock) *
                               unit_roundoff(DType::f64) +
                           static_cast<double>(blocks) * 0x1p-128;
      check_close({value_of(bench, words)}, {static_cast<double>(expected)}, {bound}, "squares");
    }
  }
}

BOOST_AUTO_TEST_CASE(sum_of_squares_has_the_same_words_however_whole_blocks_are_dealt_out) {
  TestBench bench(test_device());
  constexpr Index kCount = 9 * kNormBlock + 100;
  TestTensor values = bench.normal(DType::f32, {kCount});
  const std::vector<std::int64_t> whole = squares_of(bench, values.view(), {0, kCount});
  // sums of integers: only carries may lie elsewhere, and these words hold none
  BOOST_TEST(squares_of(bench, values.view(), {0, kNormBlock, kCount}) == whole,
             boost::test_tools::per_element());
  BOOST_TEST(squares_of(bench, values.view(),
                        {0, 2 * kNormBlock, 5 * kNormBlock, 9 * kNormBlock, kCount}) == whole,
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(sum_of_squares_adds_to_what_is_there) {
  TestBench bench(test_device());
  TestTensor values = bench.of({3, 4}, DType::f32, {2});
  TestTensor words = zero_words(bench);
  for (int i = 0; i < 4; ++i) {
    bench.kernels().sum_of_squares({.values = values.view(), .words = words.view()},
                                   bench.stream());
  }
  BOOST_CHECK_EQUAL(value_of(bench, words), 100.0);
}

BOOST_AUTO_TEST_CASE(blocks_with_nan_or_infinity_are_counted) {
  TestBench bench(test_device());
  constexpr Index kCount = 4 * kNormBlock;
  std::vector<double> numbers(kCount, 1.0);
  numbers[5] = std::nan("");
  numbers[6] = std::nan("");  // the same block: counted once
  numbers[2 * kNormBlock + 1] = -std::numeric_limits<double>::infinity();
  numbers[3 * kNormBlock] = 3e38;  // its square is beyond 2^128
  TestTensor values = bench.of(numbers, DType::f32, {kCount});
  TestTensor words = zero_words(bench);
  bench.kernels().sum_of_squares({.values = values.view(), .words = words.view()}, bench.stream());
  BOOST_CHECK_EQUAL(bench.read_words(words.view()).back(), 3);
  BOOST_CHECK(std::isnan(value_of(bench, words)));
}

BOOST_AUTO_TEST_CASE(loss_sum_equals_f64_and_counts_what_is_not_finite) {
  TestBench bench(test_device());
  for (const Index count : {1, 63, 1000, 4097, 70001}) {
    TestTensor losses = bench.normal(DType::f32, {count}, 1, 10);
    TestTensor words = zero_words(bench);
    bench.kernels().loss_sum({.losses = losses.view(), .words = words.view()}, bench.stream());
    long double expected = 0;
    long double terms = 0;
    for (const double loss : losses.values) {
      expected += loss;
      terms += std::abs(loss);
    }
    const double bound =
        static_cast<double>(terms) * static_cast<double>(count) * unit_roundoff(DType::f64);
    check_close({value_of(bench, words)}, {static_cast<double>(expected)}, {bound}, "losses");
  }
  TestTensor losses = bench.of({1, std::nan(""), 2}, DType::f32, {3});
  TestTensor words = zero_words(bench);
  bench.kernels().loss_sum({.losses = losses.view(), .words = words.view()}, bench.stream());
  BOOST_CHECK_EQUAL(bench.read_words(words.view()).back(), 1);
}

BOOST_AUTO_TEST_CASE(column_sum_equals_f64) {
  TestBench bench(test_device());
  struct Extents {
    Index rows;
    Index columns;
  };
  for (const DType dtype : bench.float_types()) {
    for (const auto& [rows, columns] :
         {Extents{1, 1}, Extents{1, 300}, Extents{7, 5}, Extents{527, 64}, Extents{530, 65},
          Extents{1500, 257}, Extents{1100, 1024}}) {
      TestTensor x = bench.normal(dtype, {rows, columns}, 1, 0.5);
      TestTensor out = bench.poisoned(dtype, {columns});
      TestTensor workspace = bench.poisoned(DType::f32, {column_sum_workspace(rows, columns)});
      bench.kernels().column_sum({.x = x.view(), .out = out.view(), .workspace = workspace.view()},
                                 bench.stream());
      std::vector<double> expected(static_cast<std::size_t>(columns));
      std::vector<double> bounds(static_cast<std::size_t>(columns));
      for (Index i = 0; i < rows * columns; ++i) {
        const double value = x.values[static_cast<std::size_t>(i)];
        expected[static_cast<std::size_t>(i % columns)] += value;
        bounds[static_cast<std::size_t>(i % columns)] +=
            std::abs(value) * static_cast<double>(rows) * unit_roundoff(DType::f32);
      }
      for (std::size_t k = 0; k < bounds.size(); ++k) {
        bounds[k] += std::abs(expected[k]) * unit_roundoff(dtype);
      }
      check_close(bench.read(out.view()), expected, bounds, "column sums");
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
