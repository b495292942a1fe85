#include "kernels/rms_norm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "kernels/reduction.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

constexpr float kEps = 1e-6F;

struct Extents {
  Index rows;
  Index width;
};
// The widths beyond 1000: a row a warp, a small block, a large one, and more than a block holds.
constexpr std::array<Extents, 13> kExtents = {{{1, 1},
                                               {1, 64},
                                               {3, 7},
                                               {2, 1000},
                                               {65, 33},
                                               {130, 256},
                                               {600, 40},
                                               {5, 1024},
                                               {3, 1536},
                                               {3, 2560},
                                               {2, 4099},
                                               {2, 8192},
                                               {2, 8200}}};

double reciprocal_rms(const double* x, Index width) {
  const double squares = std::inner_product(x, x + width, x, 0.0);
  return 1 / std::sqrt(squares / static_cast<double>(width) + static_cast<double>(kEps));
}

std::vector<double> reference(const std::vector<double>& x, const std::vector<double>& gain,
                              Index rows) {
  const auto width = static_cast<Index>(gain.size());
  std::vector<double> y;
  for (Index n = 0; n < rows; ++n) {
    const double* row = x.data() + n * width;
    const double r = reciprocal_rms(row, width);
    for (Index c = 0; c < width; ++c) {
      y.push_back(row[c] * r * gain[static_cast<std::size_t>(c)]);
    }
  }
  return y;
}

// The gradients, and for each the sum of the magnitudes of what is added up in it.
struct Gradients {
  std::vector<double> d_x;
  std::vector<double> d_gain;
  std::vector<double> d_x_terms;
  std::vector<double> d_gain_terms;
};

Gradients reference_gradients(const std::vector<double>& x, const std::vector<double>& gain,
                              const std::vector<double>& d_y, const std::vector<double>& residual,
                              Index rows) {
  const std::size_t width = gain.size();
  Gradients g{{}, std::vector<double>(width), {}, std::vector<double>(width)};
  for (std::size_t n = 0; n < static_cast<std::size_t>(rows); ++n) {
    const double* x_row = x.data() + n * width;
    const double* d_row = d_y.data() + n * width;
    const double r = reciprocal_rms(x_row, static_cast<Index>(width));
    double mean = 0;
    double mean_terms = 0;
    for (std::size_t c = 0; c < width; ++c) {
      const double term = gain[c] * d_row[c] * x_row[c] * r / static_cast<double>(width);
      mean += term;
      mean_terms += std::abs(term);
    }
    for (std::size_t c = 0; c < width; ++c) {
      const double past = residual.empty() ? 0 : residual[n * width + c];
      const double normalised = x_row[c] * r;
      g.d_x.push_back(past + r * (gain[c] * d_row[c] - normalised * mean));
      g.d_x_terms.push_back(std::abs(past) +
                            r * (std::abs(gain[c] * d_row[c]) + std::abs(normalised) * mean_terms));
      g.d_gain[c] += d_row[c] * normalised;
      g.d_gain_terms[c] += std::abs(d_row[c] * normalised);
    }
  }
  return g;
}

// One rounding to `dtype`, and `roundings` in f32 of terms of this size.
std::vector<double> bounds_of(const std::vector<double>& expected, const std::vector<double>& terms,
                              DType dtype, Index roundings) {
  std::vector<double> bounds;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    bounds.push_back(std::abs(expected[i]) * unit_roundoff(dtype) +
                     terms[i] * static_cast<double>(roundings) * unit_roundoff(DType::f32));
  }
  return bounds;
}

std::vector<double> magnitudes(std::vector<double> numbers) {
  for (double& number : numbers) {
    number = std::abs(number);
  }
  return numbers;
}

// One backward pass against f64; y, where it is needed, against the forward pass.
void check_backward(TestBench& bench, DType dtype, const Extents& extents, bool has_residual,
                    bool wants_y) {
  const Index rows = extents.rows;
  const Index width = extents.width;
  const Shape shape = {rows, width};
  TestTensor x = bench.normal(dtype, shape, 2, 0.5);
  TestTensor gain = bench.normal(dtype, {width}, 0.2, 1);
  TestTensor d_y = bench.normal(dtype, shape);
  TestTensor residual = bench.normal(dtype, has_residual ? shape : Shape{0});
  TestTensor d_x = bench.poisoned(dtype, shape);
  TestTensor forward_y = bench.poisoned(dtype, shape);
  TestTensor y = bench.poisoned(dtype, wants_y ? shape : Shape{0});
  TestTensor d_gain = bench.poisoned(dtype, {width});
  TestTensor workspace = bench.poisoned(DType::f32, {column_sum_workspace(rows, width)});
  bench.kernels().rms_norm_backward({.x = x.view(),
                                     .gain = gain.view(),
                                     .d_y = d_y.view(),
                                     .residual = residual.optional(),
                                     .d_x = d_x.view(),
                                     .y = y.optional(),
                                     .d_gain = d_gain.view(),
                                     .workspace = workspace.view(),
                                     .eps = kEps},
                                    bench.stream());
  BOOST_TEST_CONTEXT(rows << " x " << width << " residual " << has_residual << " y " << wants_y) {
    const Gradients expected =
        reference_gradients(x.values, gain.values, d_y.values, residual.values, rows);
    check_close(bench.read(d_x.view()), expected.d_x,
                bounds_of(expected.d_x, expected.d_x_terms, dtype, 3 * width + 12), "d_x");
    check_close(bench.read(d_gain.view()), expected.d_gain,
                bounds_of(expected.d_gain, expected.d_gain_terms, dtype, rows + width / 2 + 8),
                "d_gain");
    if (wants_y) {
      bench.kernels().rms_norm_forward(
          {.x = x.view(), .gain = gain.view(), .y = forward_y.view(), .eps = kEps}, bench.stream());
      check_equal(bench.read(y.view()), bench.read(forward_y.view()), "y of backward");
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(rms_norm)

BOOST_AUTO_TEST_CASE(forward_equals_f64) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const auto& [rows, width] : kExtents) {
      TestTensor x = bench.normal(dtype, {rows, width}, 2, 0.5);
      TestTensor gain = bench.normal(dtype, {width}, 0.2, 1);
      TestTensor y = bench.poisoned(dtype, {rows, width});
      bench.kernels().rms_norm_forward(
          {.x = x.view(), .gain = gain.view(), .y = y.view(), .eps = kEps}, bench.stream());
      const std::vector<double> expected = reference(x.values, gain.values, rows);
      // a sum of `width` squares, under a root (half of its error), and four more
      check_close(bench.read(y.view()), expected,
                  bounds_of(expected, magnitudes(expected), dtype, width / 2 + 6), "y");
    }
  }
}

BOOST_AUTO_TEST_CASE(the_largest_magnitude_of_what_is_written_is_reported_and_changes_no_bit) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const auto& [rows, width] : kExtents) {
      TestTensor x = bench.normal(dtype, {rows, width}, 2, 0.5);
      TestTensor gain = bench.normal(dtype, {width}, 0.2, 1);
      TestTensor y = bench.poisoned(dtype, {rows, width});
      TestTensor plain = bench.poisoned(dtype, {rows, width});
      TestTensor largest = bench.poisoned(DType::f32, {1});
      bench.kernels().rms_norm_forward(
          {.x = x.view(), .gain = gain.view(), .y = plain.view(), .eps = kEps}, bench.stream());
      bench.kernels().rms_norm_forward({.x = x.view(),
                                        .gain = gain.view(),
                                        .y = y.view(),
                                        .eps = kEps,
                                        .abs_max = largest.view()},
                                       bench.stream());
      const std::vector<double> written = bench.read(y.view());
      check_equal(written, bench.read(plain.view()), "y");
      check_equal(bench.read(largest.view()), {std::ranges::max(magnitudes(written))}, "abs_max");
      for (const bool with_residual : {false, true}) {
        TestTensor d_y = bench.normal(dtype, {rows, width});
        TestTensor residual = bench.normal(dtype, {rows, width});
        TestTensor d_x = bench.poisoned(dtype, {rows, width});
        TestTensor d_gain = bench.poisoned(DType::f32, {width});
        TestTensor workspace = bench.poisoned(DType::f32, {column_sum_workspace(rows, width)});
        const auto backward = [&](const TensorView& abs_max) {
          bench.kernels().rms_norm_backward(
              {.x = x.view(),
               .gain = gain.view(),
               .d_y = d_y.view(),
               .residual = with_residual ? ConstTensorView(residual.view()) : ConstTensorView{},
               .d_x = d_x.view(),
               .y = with_residual ? y.view() : TensorView{},
               .d_gain = d_gain.view(),
               .workspace = workspace.view(),
               .eps = kEps,
               .abs_max = abs_max},
              bench.stream());
          return bench.read(d_x.view());
        };
        const std::vector<double> without = backward({});
        check_equal(backward(largest.view()), without, "d_x");
        check_equal(bench.read(largest.view()), {std::ranges::max(magnitudes(without))},
                    "abs_max of d_x");
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(backward_equals_f64_with_and_without_residual_and_y) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const auto& [rows, width] : kExtents) {
      for (const bool has_residual : {false, true}) {
        for (const bool wants_y : {false, true}) {
          check_backward(bench, dtype, {rows, width}, has_residual, wants_y);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(gradients_may_take_the_memory_of_their_inputs) {
  TestBench bench(test_device());
  constexpr Index kRows = 70;
  constexpr Index kWidth = 72;
  const Shape shape = {kRows, kWidth};
  for (const DType dtype : bench.float_types()) {
    TestTensor x = bench.normal(dtype, shape);
    TestTensor gain = bench.normal(dtype, {kWidth}, 0.2, 1);
    TestTensor d_y = bench.normal(dtype, shape);
    TestTensor residual = bench.normal(dtype, shape);
    TestTensor d_x = bench.poisoned(dtype, shape);
    TestTensor y = bench.poisoned(dtype, shape);
    TestTensor d_gain = bench.poisoned(dtype, {kWidth});
    TestTensor d_gain_in_place = bench.poisoned(dtype, {kWidth});
    TestTensor workspace = bench.poisoned(DType::f32, {column_sum_workspace(kRows, kWidth)});
    const auto run = [&](TensorView d_y_view, ConstTensorView past, TensorView d_x_view,
                         TensorView y_view, TensorView d_gain_view) {
      bench.kernels().rms_norm_backward({.x = x.view(),
                                         .gain = gain.view(),
                                         .d_y = d_y_view,
                                         .residual = past,
                                         .d_x = d_x_view,
                                         .y = y_view,
                                         .d_gain = d_gain_view,
                                         .workspace = workspace.view(),
                                         .eps = kEps},
                                        bench.stream());
    };
    run(d_y.view(), residual.view(), d_x.view(), y.view(), d_gain.view());
    // d_x over residual, y over d_y
    TestTensor d_y_copy = bench.of(d_y.values, dtype, shape);
    run(d_y_copy.view(), residual.view(), residual.view(), d_y_copy.view(), d_gain_in_place.view());
    check_equal(bench.read(residual.view()), bench.read(d_x.view()), "d_x over residual");
    check_equal(bench.read(d_y_copy.view()), bench.read(y.view()), "y over d_y");
    check_equal(bench.read(d_gain_in_place.view()), bench.read(d_gain.view()), "d_gain");
    // d_x over d_y
    run(d_y.view(), {}, d_x.view(), {}, d_gain.view());
    run(d_y.view(), {}, d_y.view(), {}, d_gain_in_place.view());
    check_equal(bench.read(d_y.view()), bench.read(d_x.view()), "d_x over d_y");
    check_equal(bench.read(d_gain_in_place.view()), bench.read(d_gain.view()), "d_gain");
    // a frozen gain has no gradient
    d_y_copy = bench.of(d_y_copy.values, dtype, shape);
    run(d_y_copy.view(), {}, d_y_copy.view(), {}, {});
    check_equal(bench.read(d_y_copy.view()), bench.read(d_x.view()), "d_x beside a frozen gain");
  }
}

BOOST_AUTO_TEST_CASE(a_row_of_zeros_gives_zeros) {
  TestBench bench(test_device());
  constexpr Index kWidth = 40;
  for (const DType dtype : bench.float_types()) {
    TestTensor x = bench.of(std::vector<double>(kWidth, 0.0), dtype, {1, kWidth});
    TestTensor gain = bench.normal(dtype, {kWidth}, 0.2, 1);
    TestTensor y = bench.poisoned(dtype, {1, kWidth});
    bench.kernels().rms_norm_forward(
        {.x = x.view(), .gain = gain.view(), .y = y.view(), .eps = kEps}, bench.stream());
    check_equal(bench.read(y.view()), std::vector<double>(kWidth, 0.0), "y");
  }
}

BOOST_AUTO_TEST_CASE(reference_gradients_equal_central_differences) {
  TestBench bench(test_device());
  constexpr Index kRows = 3;
  constexpr Index kWidth = 5;
  const std::vector<double> x = bench.normal(DType::f32, {kRows, kWidth}, 2, 0.5).values;
  const std::vector<double> gain = bench.normal(DType::f32, {kWidth}, 0.2, 1).values;
  const std::vector<double> weights = bench.normal(DType::f32, {kRows, kWidth}).values;
  const auto loss = [&weights](const std::vector<double>& at, const std::vector<double>& with) {
    const std::vector<double> y = reference(at, with, kRows);
    return std::inner_product(y.begin(), y.end(), weights.begin(), 0.0);
  };
  const Gradients expected = reference_gradients(x, gain, weights, {}, kRows);
  check_close(expected.d_x,
              central_differences([&](const std::vector<double>& at) { return loss(at, gain); }, x),
              {1e-8}, "d_x of the reference");
  check_close(
      expected.d_gain,
      central_differences([&](const std::vector<double>& with) { return loss(x, with); }, gain),
      {1e-8}, "d_gain of the reference");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
