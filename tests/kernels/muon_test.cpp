#include "kernels/muon.h"

#include <array>
#include <cmath>
#include <numeric>

#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

constexpr std::array<Index, 6> kCounts = {1, 7, 8, 63, 1025, 40003};

struct Settings {
  float momentum;
  float grad_scale;
  float lr;
  float scale;
  float decay;
};
constexpr std::array<Settings, 3> kSettings = {
    {{0.95F, 1, 2e-2F, 6.4F, 0.1F}, {0, 0.25F, 1e-3F, 1, 0}, {0.9F, 1e-3F, 0.3F, 0.5F, 1}}};

// Of a result of `terms` magnitudes that three roundings of f32 and one of `dtype` touch.
double bound(double terms, DType dtype) {
  return 4 * unit_roundoff(DType::f32) * terms + unit_roundoff(dtype) * terms;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(muon)

BOOST_AUTO_TEST_CASE(momentum_and_nesterovs_direction_equal_f64) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const Settings& settings : kSettings) {
      for (const Index count : kCounts) {
        BOOST_TEST_CONTEXT(count << " elements, momentum " << settings.momentum) {
          TestTensor m = bench.normal(DType::f32, {count}, 1e-3);
          TestTensor grad = bench.normal(DType::f32, {count}, 1e-2);
          TestTensor direction = bench.poisoned(dtype, {count});
          bench.kernels().muon_momentum({.m = m.view(),
                                         .grad = grad.view(),
                                         .direction = direction.view(),
                                         .momentum = settings.momentum,
                                         .grad_scale = settings.grad_scale},
                                        bench.stream());
          const auto kept = static_cast<double>(settings.momentum);
          std::vector<double> moving;
          std::vector<double> nesterov;
          std::vector<double> moving_bounds;
          std::vector<double> nesterov_bounds;
          for (std::size_t i = 0; i < grad.values.size(); ++i) {
            const double share =
                (1 - kept) * static_cast<double>(settings.grad_scale) * grad.values[i];
            moving.push_back(kept * m.values[i] + share);
            nesterov.push_back(kept * moving[i] + share);
            const double terms = std::abs(kept * m.values[i]) + std::abs(share);
            moving_bounds.push_back(bound(terms, DType::f32));
            nesterov_bounds.push_back(bound(2 * terms, dtype));
          }
          check_close(bench.read(m.view()), moving, moving_bounds, "m");
          check_close(bench.read(direction.view()), nesterov, nesterov_bounds, "direction");
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_matrix_is_divided_by_its_norm) {
  TestBench bench(test_device());
  TestTensor sums =
      bench.poisoned(DType::u8, {static_cast<Index>(muon_normalize_workspace_bytes())});
  for (const DType dtype : bench.float_types()) {
    for (const double deviation : {1.0, 1e-30, 1e-18, 1e15}) {
      for (const Index count : kCounts) {
        TestTensor matrix = bench.normal(dtype, {count}, deviation);
        TestTensor normal = bench.poisoned(dtype, {count});
        bench.kernels().muon_normalize(
            {.matrix = matrix.view(), .normal = normal.view(), .workspace = sums.view()},
            bench.stream());
        const double norm = std::sqrt(std::inner_product(matrix.values.begin(), matrix.values.end(),
                                                         matrix.values.begin(), 0.0));
        std::vector<double> expected;
        std::vector<double> bounds;
        for (const double value : matrix.values) {
          expected.push_back(value / norm);
          bounds.push_back(1.01 * unit_roundoff(dtype) * std::abs(value / norm) + 1e-44);
        }
        const std::vector<double> result = bench.read(normal.view());
        check_close(result, expected, bounds, "normal");
        bench.kernels().muon_normalize(
            {.matrix = matrix.view(), .normal = matrix.view(), .workspace = sums.view()},
            bench.stream());
        check_equal(bench.read(matrix.view()), result, "in place");
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_matrix_of_zeros_stays) {
  TestBench bench(test_device());
  TestTensor sums =
      bench.poisoned(DType::u8, {static_cast<Index>(muon_normalize_workspace_bytes())});
  TestTensor matrix = bench.of(std::vector<double>(300, 0.0), DType::f32, {300});
  TestTensor normal = bench.poisoned(DType::f32, {300});
  bench.kernels().muon_normalize(
      {.matrix = matrix.view(), .normal = normal.view(), .workspace = sums.view()}, bench.stream());
  check_equal(bench.read(normal.view()), matrix.values, "normal");
}

BOOST_AUTO_TEST_CASE(one_update_equals_f64) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const Settings& settings : kSettings) {
      for (const Index count : kCounts) {
        TestTensor master = bench.normal(DType::f32, {count}, 0.02);
        TestTensor direction = bench.normal(dtype, {count}, 1e-2);
        TestTensor param = bench.poisoned(dtype, {count});
        bench.kernels().muon_update({.master = master.view(),
                                     .direction = direction.view(),
                                     .param = param.view(),
                                     .lr = settings.lr,
                                     .scale = settings.scale,
                                     .decay = settings.decay},
                                    bench.stream());
        const auto lr = static_cast<double>(settings.lr);
        std::vector<double> expected;
        std::vector<double> bounds;
        for (std::size_t i = 0; i < master.values.size(); ++i) {
          const double kept = master.values[i] * (1 - lr * static_cast<double>(settings.decay));
          const double step = lr * static_cast<double>(settings.scale) * direction.values[i];
          expected.push_back(kept - step);
          bounds.push_back(bound(std::abs(master.values[i]) + std::abs(step), DType::f32));
        }
        const std::vector<double> updated = bench.read(master.view());
        check_close(updated, expected, bounds, "master");
        check_equal(bench.read(param.view()), params_of(updated, dtype), "param");
      }
    }
  }
}

// Packed or not, whole or in pieces that begin anywhere.
BOOST_AUTO_TEST_CASE(pieces_and_packed_masters_give_the_bits_of_whole_ones) {
  TestBench bench(test_device());
  constexpr Index kCount = 5000;
  const DType type = bench.device().kind == DeviceKind::cpu ? DType::f32 : DType::bf16;
  const std::vector<double> weights =
      params_of(bench.normal(DType::f32, {kCount}, 0.02).values, DType::bf16);
  const std::vector<double> momenta = bench.normal(DType::f32, {kCount}, 1e-3).values;
  TestTensor grad = bench.normal(DType::f32, {kCount}, 1e-2);
  const auto run = [&](const std::vector<Index>& cuts, bool packed) {
    TestTensor master = packed ? bench.of(std::vector<double>(kCount, 0.0), DType::u16, {kCount})
                               : bench.of(weights, DType::f32, {kCount});
    TestTensor param = bench.of(weights, type, {kCount});
    TestTensor m = bench.of(momenta, DType::f32, {kCount});
    TestTensor direction = bench.poisoned(type, {kCount});
    for (int step = 1; step <= 3; ++step) {
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        const auto part = [&](TestTensor& of) { return of.view().slice(cuts[i], cuts[i + 1]); };
        bench.kernels().muon_momentum({.m = part(m),
                                       .grad = part(grad),
                                       .direction = part(direction),
                                       .momentum = 0.95F,
                                       .grad_scale = 0.5F},
                                      bench.stream());
        bench.kernels().muon_update({.master = part(master),
                                     .direction = part(direction),
                                     .param = part(param),
                                     .lr = 1e-2F,
                                     .scale = 3,
                                     .decay = 0.1F,
                                     .param_values = DType::bf16},
                                    bench.stream());
      }
    }
    std::vector<double> results = bench.read(param.view());
    const std::vector<double> moved = bench.read(m.view());
    results.insert(results.end(), moved.begin(), moved.end());
    return results;
  };
  const std::vector<double> whole = run({0, kCount}, false);
  check_equal(run({0, 1, 3, 1000, 4097, kCount}, false), whole, "pieces");
  check_equal(run({0, kCount}, true), whole, "packed");
  check_equal(run({0, 1, 3, 1000, 4097, kCount}, true), whole, "packed pieces");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
