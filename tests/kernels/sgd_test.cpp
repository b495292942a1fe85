#include "kernels/sgd.h"

#include <array>
#include <cmath>

#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

constexpr std::array<Index, 6> kCounts = {1, 7, 8, 63, 1025, 40003};

struct Settings {
  float lr;
  float momentum;
  float decay;
  float grad_scale;
};
constexpr std::array<Settings, 3> kSettings = {
    {{1e-1F, 0.9F, 0.1F, 1}, {6e-3F, 0, 0, 0.25F}, {3e-2F, 0.99F, 0.5F, 1e-3F}}};

SgdArgs arguments(const Settings& s) {
  return {.master = {},
          .buffer = {},
          .grad = {},
          .param = {},
          .lr = s.lr,
          .momentum = s.momentum,
          .decay = s.decay,
          .grad_scale = s.grad_scale};
}

struct State {
  std::vector<double> master;
  std::vector<double> buffer;
};

// torch.optim.SGD's step in f64, and bounds of the f32 results' errors.
State reference(const State& before, const std::vector<double>& grad, const Settings& s,
                State& bounds) {
  State after = before;
  bounds = before;
  const double unit = unit_roundoff(DType::f32);
  const auto lr = static_cast<double>(s.lr);
  for (std::size_t i = 0; i < grad.size(); ++i) {
    const double scaled = static_cast<double>(s.grad_scale) * grad[i];
    const double decayed = static_cast<double>(s.decay) * before.master[i];
    const double kept = static_cast<double>(s.momentum) * before.buffer[i];
    after.buffer[i] = kept + scaled + decayed;
    after.master[i] = before.master[i] - lr * after.buffer[i];
    // buffer: three products and two sums; master: a product and the difference
    bounds.buffer[i] = 4 * unit * (std::abs(kept) + std::abs(scaled) + std::abs(decayed));
    bounds.master[i] = 2 * unit * std::abs(after.master[i]) +
                       lr * (bounds.buffer[i] + 2 * unit * std::abs(after.buffer[i]));
  }
  return after;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(sgd)

BOOST_AUTO_TEST_CASE(one_step_equals_f64) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const Settings& settings : kSettings) {
      for (const Index count : kCounts) {
        BOOST_TEST_CONTEXT(count << " elements, momentum " << settings.momentum) {
          TestTensor master = bench.normal(DType::f32, {count}, 0.02);
          TestTensor buffer = bench.normal(DType::f32, {count}, 1e-3);
          TestTensor grad = bench.normal(DType::f32, {count}, 1e-2);
          TestTensor param = bench.poisoned(dtype, {count});
          SgdArgs args = arguments(settings);
          args.master = master.view();
          args.buffer = buffer.view();
          args.grad = grad.view();
          args.param = param.view();
          bench.kernels().sgd(args, bench.stream());
          State bounds;
          const State expected =
              reference({master.values, buffer.values}, grad.values, settings, bounds);
          const std::vector<double> new_master = bench.read(master.view());
          check_close(bench.read(buffer.view()), expected.buffer, bounds.buffer, "buffer");
          check_close(new_master, expected.master, bounds.master, "master");
          check_equal(bench.read(param.view()), params_of(new_master, dtype), "param");
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(pieces_of_a_run_give_the_bits_of_the_whole) {
  TestBench bench(test_device());
  constexpr Index kCount = 5000;
  const std::vector<double> of_master = bench.normal(DType::f32, {kCount}, 0.02).values;
  TestTensor grad = bench.normal(DType::f32, {kCount}, 1e-2);
  const auto run = [&](const std::vector<Index>& cuts) {
    TestTensor master = bench.of(of_master, DType::f32, {kCount});
    TestTensor buffer = bench.of(std::vector<double>(kCount, 0.0), DType::f32, {kCount});
    TestTensor param = bench.poisoned(DType::f32, {kCount});
    for (int step = 1; step <= 3; ++step) {
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        SgdArgs args = arguments(kSettings[0]);
        args.master = master.view().slice(cuts[i], cuts[i + 1]);
        args.buffer = buffer.view().slice(cuts[i], cuts[i + 1]);
        args.grad = grad.buffer.view().slice(cuts[i], cuts[i + 1]);
        args.param = param.view().slice(cuts[i], cuts[i + 1]);
        bench.kernels().sgd(args, bench.stream());
      }
    }
    return bench.read(param.view());
  };
  check_equal(run({0, 1, 3, 1000, 4097, kCount}), run({0, kCount}), "param");
}

BOOST_AUTO_TEST_CASE(no_gradient_no_momentum_and_no_decay_leave_the_weights_alone) {
  TestBench bench(test_device());
  constexpr Index kCount = 300;
  TestTensor master = bench.normal(DType::f32, {kCount});
  TestTensor buffer = bench.normal(DType::f32, {kCount});
  TestTensor grad = bench.of(std::vector<double>(kCount, 0.0), DType::f32, {kCount});
  TestTensor param = bench.poisoned(DType::f32, {kCount});
  SgdArgs args = arguments(kSettings[1]);
  args.master = master.view();
  args.buffer = buffer.view();
  args.grad = grad.view();
  args.param = param.view();
  bench.kernels().sgd(args, bench.stream());
  check_equal(bench.read(param.view()), master.values, "param");
  check_equal(bench.read(buffer.view()), grad.values, "buffer");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
