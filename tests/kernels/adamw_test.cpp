#include "kernels/adamw.h"

#include <array>
#include <cmath>

#include "kernels/device/master_code.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

constexpr std::array<Index, 6> kCounts = {1, 7, 8, 63, 1025, 40003};

struct Settings {
  double lr;
  double beta1;
  double beta2;
  double eps;
  double decay;
  double grad_scale;
  int step;
};
constexpr std::array<Settings, 3> kSettings = {{
    {1e-3, 0.9, 0.95, 1e-8, 0.1, 1, 1},
    {6e-4, 0.9, 0.999, 1e-8, 0, 0.25, 2},
    {3e-2, 0.8, 0.99, 1e-6, 0.5, 1e-3, 1000},
}};

// The state in f64, and bounds of the f32 state's errors after one step from the same state.
struct State {
  std::vector<double> master;
  std::vector<double> m;
  std::vector<double> v;
};

// What the kernel is given, in f32: the reference takes the same numbers.
AdamWArgs arguments(const Settings& s) {
  return {.master = {},
          .m = {},
          .v = {},
          .grad = {},
          .param = {},
          .lr = static_cast<float>(s.lr),
          .beta1 = static_cast<float>(s.beta1),
          .beta2 = static_cast<float>(s.beta2),
          .bias_correction1 = static_cast<float>(1 - std::pow(s.beta1, s.step)),
          .bias_correction2 = static_cast<float>(1 - std::pow(s.beta2, s.step)),
          .eps = static_cast<float>(s.eps),
          .decay = static_cast<float>(s.decay),
          .grad_scale = static_cast<float>(s.grad_scale)};
}

State reference(const State& before, const std::vector<double>& grad, const AdamWArgs& a,
                State& bounds) {
  State after = before;
  bounds = before;
  const double unit = unit_roundoff(DType::f32);
  for (std::size_t i = 0; i < grad.size(); ++i) {
    const double g = static_cast<double>(a.grad_scale) * grad[i];
    const auto b1 = static_cast<double>(a.beta1);
    const auto b2 = static_cast<double>(a.beta2);
    after.m[i] = b1 * before.m[i] + (1 - b1) * g;
    after.v[i] = b2 * before.v[i] + (1 - b2) * g * g;
    const auto lr = static_cast<double>(a.lr);
    const double denominator = std::sqrt(after.v[i] / static_cast<double>(a.bias_correction2)) +
                               static_cast<double>(a.eps);
    const double per_moment = 1 / static_cast<double>(a.bias_correction1) / denominator;
    const double decayed = before.master[i] * (1 - lr * static_cast<double>(a.decay));
    after.master[i] = decayed - lr * after.m[i] * per_moment;
    // m: three products, a sum; v: four, all positive; the update: m's own error, and v's halved by
    // the root; master: the decay's two roundings and the difference
    const double m_terms = std::abs(b1 * before.m[i]) + std::abs((1 - b1) * g);
    bounds.m[i] = 5 * unit * m_terms;
    bounds.v[i] = 6 * unit * after.v[i];
    bounds.master[i] = unit * (4 * std::abs(decayed) + std::abs(after.master[i])) +
                       lr * per_moment * (bounds.m[i] + 12 * unit * std::abs(after.m[i]));
  }
  return after;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(adamw)

BOOST_AUTO_TEST_CASE(one_step_equals_f64) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const Settings& settings : kSettings) {
      for (const Index count : kCounts) {
        BOOST_TEST_CONTEXT(count << " elements, step " << settings.step) {
          TestTensor master = bench.normal(DType::f32, {count}, 0.02);
          TestTensor m = bench.normal(DType::f32, {count}, 1e-3);
          TestTensor v = bench.normal(DType::f32, {count}, 1e-7, 1e-6);
          TestTensor grad = bench.normal(DType::f32, {count}, 1e-2);
          TestTensor param = bench.poisoned(dtype, {count});
          AdamWArgs args = arguments(settings);
          args.master = master.view();
          args.m = m.view();
          args.v = v.view();
          args.grad = grad.view();
          args.param = param.view();
          bench.kernels().adamw(args, bench.stream());
          State bounds;
          const State expected =
              reference({master.values, m.values, v.values}, grad.values, args, bounds);
          const std::vector<double> new_master = bench.read(master.view());
          check_close(bench.read(m.view()), expected.m, bounds.m, "m");
          check_close(bench.read(v.view()), expected.v, bounds.v, "v");
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
    TestTensor m = bench.of(std::vector<double>(kCount, 0.0), DType::f32, {kCount});
    TestTensor v = bench.of(std::vector<double>(kCount, 0.0), DType::f32, {kCount});
    TestTensor param = bench.poisoned(DType::f32, {kCount});
    for (int step = 1; step <= 3; ++step) {
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        AdamWArgs args = arguments(kSettings[0]);
        args.master = master.view().slice(cuts[i], cuts[i + 1]);
        args.m = m.view().slice(cuts[i], cuts[i + 1]);
        args.v = v.view().slice(cuts[i], cuts[i + 1]);
        args.grad = grad.buffer.view().slice(cuts[i], cuts[i + 1]);
        args.param = param.view().slice(cuts[i], cuts[i + 1]);
        bench.kernels().adamw(args, bench.stream());
      }
    }
    return bench.read(param.view());
  };
  check_equal(run({0, 1, 3, 1000, 4097, kCount}), run({0, kCount}), "param");
}

// Parameters that hold a half of their masters: of bf16, and on the CPU of f32 with such values.
DType packed_params() {
  return test_device().kind == DeviceKind::cuda ? DType::bf16 : DType::f32;
}

BOOST_AUTO_TEST_CASE(packed_masters_give_the_bits_of_whole_ones) {
  TestBench bench(test_device());
  for (const Index count : {1, 7, 8, 1025, 40003}) {
    for (const Index begin : {Index{0}, std::min<Index>(count, 3)}) {  // aligned and not
      const std::vector<double> weights = bench.normal(DType::f32, {count}, 0.02).values;
      TestTensor whole = bench.of(weights, DType::f32, {count});
      std::vector<double> remainders;
      std::vector<double> params;
      for (const double weight : weights) {
        const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(weight));
        remainders.push_back(remainder_bits(bits));
        params.push_back(to_float(BFloat16{param_bits(bits)}));
      }
      TestTensor remainder = bench.of(remainders, DType::u16, {count});
      TestTensor param = bench.of(params, packed_params(), {count});
      TestTensor other_param = bench.of(params, packed_params(), {count});
      TestTensor m = bench.normal(DType::f32, {count}, 1e-3);
      TestTensor v = bench.normal(DType::f32, {count}, 1e-7, 1e-6);
      TestTensor other_m = bench.of(m.values, DType::f32, {count});
      TestTensor other_v = bench.of(v.values, DType::f32, {count});
      const auto run = [&](const TensorView& master, TestTensor& first, TestTensor& second,
                           TestTensor& written, const TensorView& grad) {
        AdamWArgs args = arguments(kSettings[0]);
        args.master = master.slice(begin, count);
        args.m = first.view().slice(begin, count);
        args.v = second.view().slice(begin, count);
        args.grad = grad.slice(begin, count);
        args.param = written.view().slice(begin, count);
        args.param_values = DType::bf16;
        bench.kernels().adamw(args, bench.stream());
      };
      for (int step = 0; step < 3; ++step) {
        TestTensor grad = bench.normal(DType::f32, {count}, 1e-2);
        run(whole.view(), m, v, param, grad.view());
        run(remainder.view(), other_m, other_v, other_param, grad.view());
      }
      const std::vector<double> expected = bench.read(whole.view());
      check_equal(bench.read(param.view()), params_of(expected, DType::bf16), "param");
      check_equal(bench.read(other_param.view()), bench.read(param.view()), "param beside");
      check_equal(bench.read(other_m.view()), bench.read(m.view()), "m");
      const std::vector<double> rest = bench.read(remainder.view());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(expected[i]));
        BOOST_REQUIRE_EQUAL(rest[i], remainder_bits(bits));
      }
    }
  }
}

// An update that changes nothing: what is read is written again. On CUDA of all 2^32 masters, on
// the CPU, where the arithmetic is that of kernels/device/master_code_test.cpp, of one in 251.
BOOST_AUTO_TEST_CASE(every_packed_master_passes_through_the_kernel) {
  TestBench bench(test_device());
  const bool is_cuda = test_device().kind == DeviceKind::cuda;
  const std::uint64_t step = is_cuda ? 1 : 251;
  constexpr std::uint64_t kCodes = std::uint64_t{1} << 32U;
  constexpr Index kCount = Index{1} << 24U;
  DeviceBuffer remainder(test_device(), MemoryKind::device, DType::u16, {kCount}, "remainder");
  DeviceBuffer param(test_device(), MemoryKind::device, packed_params(), {kCount}, "param");
  DeviceBuffer zeros(test_device(), MemoryKind::device, DType::f32, {3 * kCount}, "zeros");
  zero_async(zeros.view(), bench.stream());
  std::vector<std::uint16_t> remainders(kCount);
  std::vector<std::uint16_t> halves(kCount);
  std::vector<float> floats(is_cuda ? 0 : kCount);
  const TensorView host_remainders = {remainders.data(), DType::u16, Shape{kCount}, Device{}};
  const TensorView host_params = {is_cuda ? static_cast<void*>(halves.data()) : floats.data(),
                                  packed_params(), Shape{kCount}, Device{}};
  AdamWArgs args = arguments(kSettings[0]);
  args.lr = 0;
  args.master = remainder.view();
  args.param = param.view();
  args.m = zeros.view().slice(0, kCount);
  args.v = zeros.view().slice(kCount, 2 * kCount);
  args.grad = zeros.view().slice(2 * kCount, 3 * kCount);
  args.param_values = DType::bf16;
  std::uint64_t wrong = 0;
  for (std::uint64_t first = 0; first < kCodes;
       first += step * static_cast<std::uint64_t>(kCount)) {
    const auto code = [&](std::size_t i) { return static_cast<std::uint32_t>(first + step * i); };
    for (std::size_t i = 0; i < remainders.size(); ++i) {
      remainders[i] = remainder_bits(code(i));
      halves[i] = param_bits(code(i));
    }
    for (std::size_t i = 0; i < floats.size(); ++i) {
      floats[i] = to_float(BFloat16{halves[i]});
    }
    copy_async(host_remainders, remainder.view(), bench.stream());
    copy_async(host_params, param.view(), bench.stream());
    bench.kernels().adamw(args, bench.stream());
    copy_async(remainder.view(), host_remainders, bench.stream());
    copy_async(param.view(), host_params, bench.stream());
    bench.stream().synchronize();
    for (std::size_t i = 0; i < remainders.size(); ++i) {
      const auto half =
          is_cuda ? halves[i]
                  : static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(floats[i]) >> 16U);
      wrong += remainders[i] != remainder_bits(code(i)) || half != param_bits(code(i)) ? 1 : 0;
    }
  }
  BOOST_TEST(wrong == 0U);
}

BOOST_AUTO_TEST_CASE(no_gradient_and_no_decay_leave_the_weights_alone) {
  TestBench bench(test_device());
  constexpr Index kCount = 300;
  TestTensor master = bench.normal(DType::f32, {kCount});
  TestTensor m = bench.of(std::vector<double>(kCount, 0.0), DType::f32, {kCount});
  TestTensor v = bench.of(std::vector<double>(kCount, 0.0), DType::f32, {kCount});
  TestTensor grad = bench.of(std::vector<double>(kCount, 0.0), DType::f32, {kCount});
  TestTensor param = bench.poisoned(DType::f32, {kCount});
  AdamWArgs args = arguments(kSettings[1]);
  args.master = master.view();
  args.m = m.view();
  args.v = v.view();
  args.grad = grad.view();
  args.param = param.view();
  bench.kernels().adamw(args, bench.stream());
  check_equal(bench.read(param.view()), master.values, "param");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
