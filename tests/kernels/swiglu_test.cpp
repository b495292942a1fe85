#include "kernels/swiglu.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

double silu(double x) {
  return x / (1 + std::exp(-x));
}

// [N, F] from [N, 2 F], in f64.
std::vector<double> reference(const std::vector<double>& gate_up, Index rows, Index width) {
  std::vector<double> act;
  for (Index n = 0; n < rows; ++n) {
    const double* gate = gate_up.data() + n * 2 * width;
    for (Index f = 0; f < width; ++f) {
      act.push_back(silu(gate[f]) * gate[width + f]);
    }
  }
  return act;
}

// The gradient, and for each element the sum of the magnitudes of what is added up in it: the
// derivative of silu is near 0 at x = -1.28 as the difference of two terms.
struct Gradient {
  std::vector<double> d_gate_up;
  std::vector<double> terms;
};

Gradient reference_gradient(const std::vector<double>& gate_up, const std::vector<double>& d_act,
                            Index rows, Index width) {
  Gradient result{std::vector<double>(gate_up.size()), std::vector<double>(gate_up.size())};
  for (Index n = 0; n < rows; ++n) {
    for (Index f = 0; f < width; ++f) {
      const auto at_gate = static_cast<std::size_t>(n * 2 * width + f);
      const auto at_up = static_cast<std::size_t>((n * 2 + 1) * width + f);
      const double gate = gate_up[at_gate];
      const double d = d_act[static_cast<std::size_t>(n * width + f)];
      const double s = 1 / (1 + std::exp(-gate));
      result.d_gate_up[at_gate] = d * gate_up[at_up] * (s + gate * s * (1 - s));
      result.terms[at_gate] = std::abs(d * gate_up[at_up]) * (s + std::abs(gate) * s * (1 - s));
      result.d_gate_up[at_up] = d * silu(gate);
      result.terms[at_up] = std::abs(d * silu(gate));
    }
  }
  return result;
}

std::vector<double> magnitudes(std::vector<double> numbers) {
  for (double& number : numbers) {
    number = std::abs(number);
  }
  return numbers;
}

// One rounding to `dtype`, and a dozen in f32 of terms of this size: the exponential alone takes
// two units. Below `kCutOff` a sigmoid may be 0.
std::vector<double> bounds_of(const std::vector<double>& expected, const std::vector<double>& terms,
                              DType dtype) {
  constexpr double kRoundings = 12;
  constexpr double kCutOff = 1e-30;
  std::vector<double> bounds;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    bounds.push_back(std::abs(expected[i]) * unit_roundoff(dtype) +
                     terms[i] * kRoundings * unit_roundoff(DType::f32) + kCutOff);
  }
  return bounds;
}

struct Extents {
  Index rows;
  Index width;
};
constexpr std::array<Extents, 6> kExtents = {
    {{1, 1}, {1, 7}, {3, 8}, {5, 129}, {33, 257}, {70, 512}}};

}  // namespace

BOOST_AUTO_TEST_SUITE(swiglu)

BOOST_AUTO_TEST_CASE(forward_equals_f64) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const auto& [rows, width] : kExtents) {
      TestTensor gate_up = bench.normal(dtype, {rows, 2 * width}, 3);
      TestTensor act = bench.poisoned(dtype, {rows, width});
      bench.kernels().swiglu_forward({.gate_up = gate_up.view(), .act = act.view()},
                                     bench.stream());
      const std::vector<double> expected = reference(gate_up.values, rows, width);
      check_close(bench.read(act.view()), expected,
                  bounds_of(expected, magnitudes(expected), dtype), "act");
    }
  }
}

BOOST_AUTO_TEST_CASE(backward_equals_f64_and_writes_act_with_the_bits_of_forward) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const auto& [rows, width] : kExtents) {
      TestTensor gate_up = bench.normal(dtype, {rows, 2 * width}, 3);
      TestTensor d_act = bench.normal(dtype, {rows, width});
      TestTensor act = bench.poisoned(dtype, {rows, width});
      TestTensor again = bench.poisoned(dtype, {rows, width});
      TestTensor d_gate_up = bench.poisoned(dtype, {rows, 2 * width});
      bench.kernels().swiglu_forward({.gate_up = gate_up.view(), .act = act.view()},
                                     bench.stream());
      bench.kernels().swiglu_backward({.gate_up = gate_up.view(),
                                       .d_act = d_act.view(),
                                       .d_gate_up = d_gate_up.view(),
                                       .act = again.view()},
                                      bench.stream());
      const Gradient expected = reference_gradient(gate_up.values, d_act.values, rows, width);
      check_close(bench.read(d_gate_up.view()), expected.d_gate_up,
                  bounds_of(expected.d_gate_up, expected.terms, dtype), "d_gate_up");
      check_equal(bench.read(again.view()), bench.read(act.view()), "act of backward");
    }
  }
}

BOOST_AUTO_TEST_CASE(gradients_may_take_the_memory_of_their_inputs) {
  TestBench bench(test_device());
  constexpr Index kRows = 9;
  constexpr Index kWidth = 131;
  for (const DType dtype : bench.float_types()) {
    TestTensor gate_up = bench.normal(dtype, {kRows, 2 * kWidth});
    TestTensor d_act = bench.normal(dtype, {kRows, kWidth});
    TestTensor act = bench.poisoned(dtype, {kRows, kWidth});
    TestTensor d_gate_up = bench.poisoned(dtype, {kRows, 2 * kWidth});
    bench.kernels().swiglu_backward({.gate_up = gate_up.view(),
                                     .d_act = d_act.view(),
                                     .d_gate_up = d_gate_up.view(),
                                     .act = act.view()},
                                    bench.stream());
    bench.kernels().swiglu_backward({.gate_up = gate_up.view(),
                                     .d_act = d_act.view(),
                                     .d_gate_up = gate_up.view(),
                                     .act = d_act.view()},
                                    bench.stream());
    check_equal(bench.read(gate_up.view()), bench.read(d_gate_up.view()), "d_gate_up in place");
    check_equal(bench.read(d_act.view()), bench.read(act.view()), "act in place");
  }
}

BOOST_AUTO_TEST_CASE(the_largest_magnitude_of_what_is_written_is_reported) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const auto& [rows, width] : kExtents) {
      for (const bool is_finite : {true, false}) {
        TestTensor gate_up = bench.normal(dtype, {rows, 2 * width}, 3);
        TestTensor d_act = bench.normal(dtype, {rows, width});
        if (!is_finite) {
          std::vector<double> numbers = gate_up.values;
          numbers.back() = std::numeric_limits<double>::infinity();
          gate_up = bench.of(numbers, dtype, {rows, 2 * width});
        }
        TestTensor act = bench.poisoned(dtype, {rows, width});
        TestTensor d_gate_up = bench.poisoned(dtype, {rows, 2 * width});
        TestTensor largest = bench.poisoned(DType::f32, {1});
        const auto check = [&](TestTensor& written) {
          const std::vector<double> values = bench.read(written.view());
          const double reported = bench.read(largest.view()).front();
          if (!is_finite) {
            BOOST_TEST(!std::isfinite(reported));
            return;
          }
          check_equal({reported}, {std::ranges::max(magnitudes(values))}, "abs_max");
        };
        bench.kernels().swiglu_forward(
            {.gate_up = gate_up.view(), .act = act.view(), .abs_max = largest.view()},
            bench.stream());
        check(act);
        bench.kernels().swiglu_backward({.gate_up = gate_up.view(),
                                         .d_act = d_act.view(),
                                         .d_gate_up = d_gate_up.view(),
                                         .act = act.view(),
                                         .abs_max = largest.view()},
                                        bench.stream());
        check(d_gate_up);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(large_gates_give_finite_numbers) {
  TestBench bench(test_device());
  const std::vector<double> gate_up = {1e4, -1e4, 100, -100, 88, -88, 0, -0.0,  // gate
                                       1,   1,    1,   1,    1,  1,   1, 1};    // up
  constexpr Index kWidth = 8;
  for (const DType dtype : bench.float_types()) {
    TestTensor in = bench.of(gate_up, dtype, {1, 2 * kWidth});
    TestTensor d_act = bench.of(std::vector<double>(kWidth, 1.0), dtype, {1, kWidth});
    TestTensor act = bench.poisoned(dtype, {1, kWidth});
    TestTensor d_gate_up = bench.poisoned(dtype, {1, 2 * kWidth});
    bench.kernels().swiglu_backward({.gate_up = in.view(),
                                     .d_act = d_act.view(),
                                     .d_gate_up = d_gate_up.view(),
                                     .act = act.view()},
                                    bench.stream());
    const std::vector<double> expected = reference(in.values, 1, kWidth);
    check_close(bench.read(act.view()), expected, bounds_of(expected, magnitudes(expected), dtype),
                "act");
    const Gradient gradient = reference_gradient(in.values, d_act.values, 1, kWidth);
    check_close(bench.read(d_gate_up.view()), gradient.d_gate_up,
                bounds_of(gradient.d_gate_up, gradient.terms, dtype), "d_gate_up");
  }
}

BOOST_AUTO_TEST_CASE(reference_gradient_equals_central_differences) {
  TestBench bench(test_device());
  constexpr Index kRows = 3;
  constexpr Index kWidth = 5;
  const std::vector<double> gate_up = bench.normal(DType::f32, {kRows, 2 * kWidth}, 2).values;
  const std::vector<double> weights = bench.normal(DType::f32, {kRows, kWidth}).values;
  const auto loss = [&weights](const std::vector<double>& x) {
    const std::vector<double> act = reference(x, kRows, kWidth);
    return std::inner_product(act.begin(), act.end(), weights.begin(), 0.0);
  };
  check_close(reference_gradient(gate_up, weights, kRows, kWidth).d_gate_up,
              central_differences(loss, gate_up), {1e-8}, "gradient of the reference");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
