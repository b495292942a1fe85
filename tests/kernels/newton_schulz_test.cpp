// Against singular value decompositions in f64 (one-sided Jacobi rotations, Hestenes 1958).
#include "kernels/newton_schulz.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/base/error.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

struct Matrix {
  Index rows;
  Index columns;
  std::vector<double> values;  // row-major
  [[nodiscard]] double& at(Index i, Index j) {
    return values[static_cast<std::size_t>(i * columns + j)];
  }
  [[nodiscard]] double at(Index i, Index j) const {
    return values[static_cast<std::size_t>(i * columns + j)];
  }
};

Matrix transposed(const Matrix& m) {
  Matrix t{m.columns, m.rows, std::vector<double>(m.values.size())};
  for (Index i = 0; i < m.rows; ++i) {
    for (Index j = 0; j < m.columns; ++j) {
      t.at(j, i) = m.at(i, j);
    }
  }
  return t;
}

// m = u diag(s) v^T, of min(rows, columns) singular values.
struct Decomposition {
  Matrix u;  // [rows, n]; a column of a singular value of 0 is 0
  std::vector<double> s;
  Matrix v;  // [columns, n]
};

// Requires: no more columns than rows. Rotates pairs of columns until all are orthogonal.
Decomposition decompose_tall(Matrix m) {
  const Index n = m.columns;
  Matrix v{n, n, std::vector<double>(static_cast<std::size_t>(n * n))};
  for (Index i = 0; i < n; ++i) {
    v.at(i, i) = 1;
  }
  const auto rotate = [](Matrix& of, Index p, Index q, double cosine, double sine) {
    for (Index i = 0; i < of.rows; ++i) {
      const double a = of.at(i, p);
      const double b = of.at(i, q);
      of.at(i, p) = cosine * a - sine * b;
      of.at(i, q) = sine * a + cosine * b;
    }
  };
  constexpr int kMostSweeps = 60;
  bool is_orthogonal = false;
  for (int sweep = 0; sweep < kMostSweeps && !is_orthogonal; ++sweep) {
    is_orthogonal = true;
    for (Index p = 0; p < n; ++p) {
      for (Index q = p + 1; q < n; ++q) {
        double alpha = 0;
        double beta = 0;
        double gamma = 0;
        for (Index i = 0; i < m.rows; ++i) {
          alpha += m.at(i, p) * m.at(i, p);
          beta += m.at(i, q) * m.at(i, q);
          gamma += m.at(i, p) * m.at(i, q);
        }
        if (std::abs(gamma) <= 1e-15 * std::sqrt(alpha * beta) || gamma == 0) {
          continue;
        }
        is_orthogonal = false;
        const double zeta = (beta - alpha) / (2 * gamma);
        const double t = std::copysign(1.0, zeta) / (std::abs(zeta) + std::sqrt(1 + zeta * zeta));
        const double cosine = 1 / std::sqrt(1 + t * t);
        rotate(m, p, q, cosine, cosine * t);
        rotate(v, p, q, cosine, cosine * t);
      }
    }
  }
  Decomposition d{m, std::vector<double>(static_cast<std::size_t>(n)), v};
  for (Index j = 0; j < n; ++j) {
    double squares = 0;
    for (Index i = 0; i < m.rows; ++i) {
      squares += m.at(i, j) * m.at(i, j);
    }
    const double norm = std::sqrt(squares);
    d.s[static_cast<std::size_t>(j)] = norm;
    for (Index i = 0; i < m.rows; ++i) {
      d.u.at(i, j) = norm == 0 ? 0 : m.at(i, j) / norm;
    }
  }
  return d;
}

Decomposition decompose(const Matrix& m) {
  if (m.rows >= m.columns) {
    return decompose_tall(m);
  }
  Decomposition d = decompose_tall(transposed(m));
  std::swap(d.u, d.v);
  return d;
}

// u diag(of(s)) v^T
template <typename Of>
Matrix composed(const Decomposition& d, const Of& of) {
  Matrix m{d.u.rows, d.v.rows, std::vector<double>(static_cast<std::size_t>(d.u.rows * d.v.rows))};
  for (Index k = 0; k < d.u.columns; ++k) {
    const double value = of(d.s[static_cast<std::size_t>(k)]);
    for (Index i = 0; i < m.rows; ++i) {
      for (Index j = 0; j < m.columns; ++j) {
        m.at(i, j) += d.u.at(i, k) * value * d.v.at(j, k);
      }
    }
  }
  return m;
}

double after_steps(double s, int steps) {
  const auto [a, b, c] = kNewtonSchulz;
  for (int step = 0; step < steps; ++step) {
    s = static_cast<double>(a) * s + static_cast<double>(b) * std::pow(s, 3) +
        static_cast<double>(c) * std::pow(s, 5);
  }
  return s;
}

double norm_of(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) {
    squares += value * value;
  }
  return std::sqrt(squares);
}

std::vector<double> orthogonalized(TestBench& bench, TestTensor& matrix, int steps) {
  const TensorView view = matrix.view();
  TestTensor workspace = bench.poisoned(
      DType::u8, {static_cast<Index>(newton_schulz_workspace_bytes(bench.device().kind, view.dtype,
                                                                   view.shape[0], view.shape[1]))});
  newton_schulz(bench.kernels(), {.matrix = view, .steps = steps, .workspace = workspace.view()},
                bench.stream());
  return bench.read(view);
}

// The largest error of an element. Five steps amplify a relative rounding of what they store, by
// 3.4 each where singular values are small.
double tolerance(DType dtype) {
  return dtype == DType::f32 ? 2e-4 : 0.08;
}

constexpr std::array<std::pair<Index, Index>, 9> kShapes = {
    {{1, 1}, {1, 40}, {40, 1}, {16, 16}, {33, 33}, {24, 64}, {64, 24}, {20, 77}, {130, 31}}};

}  // namespace

BOOST_AUTO_TEST_SUITE(newton_schulz_iterations)

BOOST_AUTO_TEST_CASE(singular_values_follow_the_polynomial_and_their_vectors_stay) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const auto& [rows, columns] : kShapes) {
      for (const int steps : {1, 4, 5}) {
        BOOST_TEST_CONTEXT(rows << " x " << columns << ", " << steps << " steps") {
          TestTensor matrix = bench.normal(dtype, {rows, columns}, 1e-3);
          const Decomposition d = decompose({rows, columns, matrix.values});
          const double norm = norm_of(matrix.values);
          const Matrix expected =
              composed(d, [&](double s) { return after_steps(s / norm, steps); });
          const std::vector<double> result = orthogonalized(bench, matrix, steps);
          check_close(result, expected.values, std::vector<double>(result.size(), tolerance(dtype)),
                      "result");
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(five_steps_come_near_the_polar_factor) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    const double rounding = dtype == DType::f32 ? 1e-3 : 0.1;
    for (const auto& [rows, columns] : kShapes) {
      BOOST_TEST_CONTEXT(rows << " x " << columns) {
        TestTensor matrix = bench.normal(dtype, {rows, columns}, 50);
        const Decomposition before = decompose({rows, columns, matrix.values});
        const double norm = norm_of(matrix.values);
        const Matrix polar = composed(before, [](double) { return 1.0; });
        const Matrix result{rows, columns, orthogonalized(bench, matrix, 5)};
        // <result, polar> is the sum of the singular values where the vectors are the same.
        double inner = 0;
        for (std::size_t i = 0; i < polar.values.size(); ++i) {
          inner += result.values[i] * polar.values[i];
        }
        const Decomposition after = decompose(result);
        double sum = 0;
        for (const double s : after.s) {
          sum += s;
          BOOST_CHECK_LT(s, 1.21 + rounding);
        }
        BOOST_CHECK_CLOSE(inner, sum, 100 * rounding);
        std::vector<double> sorted = before.s;
        std::ranges::sort(sorted);
        std::vector<double> brought = after.s;
        std::ranges::sort(brought);
        for (std::size_t i = 0; i < sorted.size(); ++i) {
          if (*std::ranges::min_element(before.s) / norm >= 0.002) {
            BOOST_CHECK_GT(brought[i], 0.68 - rounding);
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(zeros_stay_zeros) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    TestTensor matrix = bench.of(std::vector<double>(std::size_t{12} * 20, 0.0), dtype, {12, 20});
    check_equal(orthogonalized(bench, matrix, 5), matrix.values, "zeros");
  }
}

// Rank 3 of 16: what has no direction gets none.
BOOST_AUTO_TEST_CASE(singular_values_of_zero_stay_zero) {
  TestBench bench(test_device());
  const std::vector<double> left = bench.normal(DType::f32, {16, 3}).values;
  const std::vector<double> right = bench.normal(DType::f32, {3, 40}).values;
  Matrix low{16, 40, std::vector<double>(std::size_t{16} * 40)};
  for (Index i = 0; i < 16; ++i) {
    for (Index j = 0; j < 40; ++j) {
      for (Index k = 0; k < 3; ++k) {
        low.at(i, j) +=
            left[static_cast<std::size_t>(3 * i + k)] * right[static_cast<std::size_t>(40 * k + j)];
      }
    }
  }
  for (const bool tall : {false, true}) {
    const Matrix m = tall ? transposed(low) : low;
    TestTensor matrix = bench.of(m.values, DType::f32, {m.rows, m.columns});
    const Matrix result{m.rows, m.columns, orthogonalized(bench, matrix, 5)};
    std::vector<double> s = decompose(result).s;
    std::ranges::sort(s, std::ranges::greater());
    for (std::size_t i = 0; i < s.size(); ++i) {
      if (i < 3) {
        BOOST_CHECK_GT(s[i], 0.68);
        BOOST_CHECK_LT(s[i], 1.21);
      } else {
        BOOST_CHECK_LT(s[i], 1e-3);  // rounding of f32, times 3.4445 to the fifth
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_factor_of_the_matrix_changes_nothing_but_rounding) {
  TestBench bench(test_device());
  const std::vector<double> values = bench.normal(DType::f32, {24, 40}).values;
  std::vector<std::vector<double>> results;
  for (const double factor : {1.0, std::ldexp(1.0, -100), std::ldexp(1.0, 90)}) {
    std::vector<double> scaled = values;
    for (double& value : scaled) {
      value *= factor;
    }
    TestTensor matrix = bench.of(scaled, DType::f32, {24, 40});
    results.push_back(orthogonalized(bench, matrix, 5));
  }
  check_equal(results[1], results[0], "small");
  check_equal(results[2], results[0], "large");
}

BOOST_AUTO_TEST_CASE(too_small_a_workspace_and_no_steps_are_refused) {
  TestBench bench(test_device());
  TestTensor matrix = bench.normal(DType::f32, {4, 6});
  TestTensor workspace = bench.poisoned(DType::u8, {256});
  BOOST_CHECK_THROW(
      newton_schulz(bench.kernels(),
                    {.matrix = matrix.view(), .steps = 5, .workspace = workspace.view()},
                    bench.stream()),
      ContractError);
  BOOST_CHECK_THROW((void)orthogonalized(bench, matrix, 0), ContractError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
