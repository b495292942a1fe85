#include "kernels/gemm.h"

#include <array>
#include <cmath>
#include <tuple>

#include "kernels/base/error.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

struct Extents {
  Index m;
  Index n;
  Index k;
};
constexpr std::array<Extents, 7> kExtents = {{{1, 1, 1},
                                              {1, 7, 3},
                                              {5, 64, 33},
                                              {33, 1, 65},
                                              {65, 129, 31},
                                              {128, 96, 160},
                                              {17, 200, 257}}};

// Where c comes from.
enum class Addend { none, in_place, elsewhere };

struct Variant {
  Transpose transpose_a;
  Transpose transpose_b;
  float beta;
  Addend addend;
  bool has_bias;
  Index padding;  // elements between the rows of each matrix
};

bool is(Transpose transpose) {
  return transpose == Transpose::yes;
}

// d in f64, and the magnitudes of what each element adds up.
struct Product {
  std::vector<double> values;
  std::vector<double> terms;
};

struct Operands {
  std::vector<double> a;
  std::vector<double> b;
  std::vector<double> c;
  std::vector<double> bias;
};

Index stride_a(const Extents& e, const Variant& v) {
  return (is(v.transpose_a) ? e.m : e.k) + v.padding;
}
Index stride_b(const Extents& e, const Variant& v) {
  return (is(v.transpose_b) ? e.k : e.n) + v.padding;
}
Index stride_d(const Extents& e, const Variant& v) {
  return e.n + v.padding;
}

Product reference(const Operands& in, const Extents& e, const Variant& v) {
  const Index lda = stride_a(e, v);
  const Index ldb = stride_b(e, v);
  const Index ldd = stride_d(e, v);
  Product d{std::vector<double>(in.c.size()), std::vector<double>(in.c.size())};
  for (Index i = 0; i < e.m; ++i) {
    for (Index j = 0; j < e.n; ++j) {
      const auto at = static_cast<std::size_t>(i * ldd + j);
      const double added = v.beta == 0 ? 0 : static_cast<double>(v.beta) * in.c[at];
      const double bias = v.has_bias ? in.bias[static_cast<std::size_t>(j)] : 0;
      double sum = added + bias;
      double terms = std::abs(added) + std::abs(bias);
      for (Index l = 0; l < e.k; ++l) {
        const Index at_a = is(v.transpose_a) ? l * lda + i : i * lda + l;
        const Index at_b = is(v.transpose_b) ? j * ldb + l : l * ldb + j;
        const double term =
            in.a[static_cast<std::size_t>(at_a)] * in.b[static_cast<std::size_t>(at_b)];
        sum += term;
        terms += std::abs(term);
      }
      d.values[at] = sum;
      d.terms[at] = terms;
    }
  }
  return d;
}

class GemmBench : public TestBench {
 public:
  explicit GemmBench(Device device)
      : TestBench(device),
        workspace_(poisoned(DType::u8, {static_cast<Index>(gemm_workspace_bytes(device.kind))})) {}

  void check(DType in_type, DType out_type, const Extents& e, const Variant& v) {
    const Index lda = stride_a(e, v);
    const Index ldb = stride_b(e, v);
    const Index ldd = stride_d(e, v);
    TestTensor a = normal(in_type, {is(v.transpose_a) ? e.k : e.m, lda});
    TestTensor b = normal(in_type, {is(v.transpose_b) ? e.n : e.k, ldb});
    TestTensor c = normal(out_type, {e.m, ldd});
    TestTensor bias = normal(in_type, v.has_bias ? Shape{e.n} : Shape{0});
    // without an addend d is full of NaN: the kernel must not read it
    TestTensor d = v.addend == Addend::in_place ? of(c.values, out_type, {e.m, ldd})
                                                : poisoned(out_type, {e.m, ldd});
    const std::vector<double> before = read(d.view());
    const auto addend = [&]() -> ConstTensorView {
      switch (v.addend) {
        case Addend::none:
          return {};
        case Addend::in_place:
          return d.view();
        case Addend::elsewhere:
          return c.view();
      }
      return {};
    };
    kernels().gemm({.m = e.m,
                    .n = e.n,
                    .k = e.k,
                    .transpose_a = v.transpose_a,
                    .transpose_b = v.transpose_b,
                    .a = a.view(),
                    .lda = lda,
                    .b = b.view(),
                    .ldb = ldb,
                    .beta = v.beta,
                    .c = addend(),
                    .bias = bias.optional(),
                    .d = d.view(),
                    .ldd = ldd,
                    .workspace = workspace_.optional()},
                   stream());
    Product expected = reference({a.values, b.values, c.values, bias.values}, e, v);
    // For some shapes cuBLASLt rounds the product to the result's type before it adds c and bias
    // (seen on an H100 with cuBLAS 13.1): its size is at most that of the result and the addends.
    const bool rounds_twice = out_type != DType::f32 && device().kind == DeviceKind::cuda &&
                              (v.has_bias || v.addend != Addend::none);
    const auto rounded_before = [&](std::size_t at) {
      if (!rounds_twice) {
        return 0.0;
      }
      const double c_part =
          v.addend == Addend::none ? 0.0 : std::abs(static_cast<double>(v.beta) * c.values[at]);
      const double bias_part =
          v.has_bias ? std::abs(bias.values[at % static_cast<std::size_t>(ldd)]) : 0.0;
      return 2 * (std::abs(expected.values[at]) + c_part + bias_part);
    };
    std::vector<double> bounds;
    for (Index i = 0; i < e.m * ldd; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (i % ldd >= e.n) {
        expected.values[at] = before[at];  // between the rows nothing is written
      }
      bounds.push_back(
          (std::abs(expected.values[at]) + rounded_before(at)) * unit_roundoff(out_type) +
          expected.terms[at] * static_cast<double>(e.k + 4) * unit_roundoff(DType::f32));
    }
    BOOST_TEST_CONTEXT(e.m << " x " << e.n << " x " << e.k << ", transposed " << is(v.transpose_a)
                           << is(v.transpose_b) << ", beta " << v.beta << ", bias " << v.has_bias
                           << ", " << dtype_name(in_type) << " to " << dtype_name(out_type)) {
      check_close(read(d.view()), expected.values, bounds, "d");
    }
  }

 private:
  TestTensor workspace_;
};

// e5m2 or e4m3 times e4m3, with scales that no two rows share.
class ScaledBench : public TestBench {
 public:
  using TestBench::TestBench;

  void check(DType in_a, DType out, ScaleMode mode, Accumulation accumulation, const Extents& e,
             const Variant& v) {
    const bool on_cpu = device().kind == DeviceKind::cpu;
    const Index lda = stride_a(e, v);
    const Index ldb = stride_b(e, v);
    const Index ldd = stride_d(e, v);
    TestTensor a = normal(in_a, {is(v.transpose_a) ? e.k : e.m, lda});
    TestTensor b = normal(DType::e4m3, {is(v.transpose_b) ? e.n : e.k, ldb});
    TestTensor scales_a = normal(DType::f32, {mode == ScaleMode::row ? e.m : 1}, 0.3, 2);
    TestTensor scales_b = normal(DType::f32, {mode == ScaleMode::row ? e.n : 1}, 1e-3, 0.01);
    TestTensor c = normal(out, {e.m, ldd});
    TestTensor bias = normal(on_cpu ? DType::f32 : DType::bf16, v.has_bias ? Shape{e.n} : Shape{0});
    const auto start = [&] {
      return v.addend == Addend::in_place ? of(c.values, out, {e.m, ldd})
                                          : poisoned(out, {e.m, ldd});
    };
    TestTensor workspace = poisoned(
        DType::u8, {static_cast<Index>(scaled_gemm_workspace_bytes(device().kind, e.m, e.n, e.k))});
    const auto multiply = [&](const GemmOperand& left, const GemmOperand& right) {
      TestTensor d = start();
      kernels().gemm({.m = e.m,
                      .n = e.n,
                      .k = e.k,
                      .transpose_a = v.transpose_a,
                      .transpose_b = v.transpose_b,
                      .a = left,
                      .lda = lda,
                      .b = right,
                      .ldb = ldb,
                      .beta = v.beta,
                      .c = v.addend == Addend::none       ? ConstTensorView{}
                           : v.addend == Addend::in_place ? d.view()
                                                          : c.view(),
                      .bias = bias.optional(),
                      .d = d.view(),
                      .ldd = ldd,
                      .workspace = workspace.view(),
                      .accumulation = is_scaled(left) ? accumulation : Accumulation::full},
                     stream());
      return read(d.view());
    };
    BOOST_TEST_CONTEXT(e.m << " x " << e.n << " x " << e.k << ", " << dtype_name(in_a) << " to "
                           << dtype_name(out) << ", scales " << static_cast<int>(mode)
                           << ", accumulation " << static_cast<int>(accumulation) << ", beta "
                           << v.beta << ", bias " << v.has_bias) {
      const std::vector<double> d =
          multiply({a.view(), mode, scales_a.view()}, {b.view(), mode, scales_b.view()});
      const std::vector<double> times_a = times(a, scales_a, lda, !is(v.transpose_a));
      const std::vector<double> times_b = times(b, scales_b, ldb, is(v.transpose_b));
      if (on_cpu) {
        TestTensor plain_a = of(times_a, DType::f32, {static_cast<Index>(times_a.size())});
        TestTensor plain_b = of(times_b, DType::f32, {static_cast<Index>(times_b.size())});
        check_equal(d, multiply(plain_a.view(), plain_b.view()), "d beside the f32 product");
        return;
      }
      const Product expected = reference({times_a, times_b, c.values, bias.values}, e, v);
      // Hopper cuts each product of 8 bits to about 14 bits of the largest of 32, and rounds the
      // result, perhaps before c and bias are added, to its type.
      constexpr double kOfTerms = 0x1p-9;
      std::vector<double> bounds;
      for (std::size_t i = 0; i < expected.values.size(); ++i) {
        bounds.push_back(expected.terms[i] * (kOfTerms + 2 * unit_roundoff(out)));
      }
      check_close(d, expected.values, bounds, "d");
    }
  }

 private:
  static bool is_scaled(const GemmOperand& operand) {
    return operand.scale_mode != ScaleMode::none;
  }

  // In f32, one rounding each. `by_rows`: a scale for each stored row.
  static std::vector<double> times(const TestTensor& numbers, const TestTensor& scales, Index ld,
                                   bool by_rows) {
    std::vector<double> result;
    for (std::size_t i = 0; i < numbers.values.size(); ++i) {
      const std::size_t along =
          by_rows ? i / static_cast<std::size_t>(ld) : i % static_cast<std::size_t>(ld);
      const std::size_t at = scales.values.size() == 1 ? 0 : along;
      // between the rows there is no scale
      const double scale = at < scales.values.size() ? scales.values[at] : 1;
      result.push_back(static_cast<float>(numbers.values[i]) * static_cast<float>(scale));
    }
    return result;
  }
};

constexpr std::array<Transpose, 2> kTransposes = {Transpose::no, Transpose::yes};

}  // namespace

BOOST_AUTO_TEST_SUITE(gemm)

BOOST_AUTO_TEST_CASE(all_transposes_and_addends_equal_f64) {
  GemmBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const Extents& extents : kExtents) {
      for (const Transpose transpose_a : kTransposes) {
        for (const Transpose transpose_b : kTransposes) {
          for (const bool has_bias : {false, true}) {
            bench.check(dtype, dtype, extents,
                        {transpose_a, transpose_b, 0, Addend::none, has_bias, 0});
            bench.check(dtype, dtype, extents,
                        {transpose_a, transpose_b, 1, Addend::in_place, has_bias, 0});
            bench.check(dtype, dtype, extents,
                        {transpose_a, transpose_b, 1, Addend::elsewhere, has_bias, 0});
            bench.check(dtype, dtype, extents,
                        {transpose_a, transpose_b, 0.5F, Addend::elsewhere, has_bias, 0});
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(rows_may_lie_apart_and_nothing_between_them_is_written) {
  GemmBench bench(test_device());
  constexpr Index kPadding = 8;
  for (const DType dtype : bench.float_types()) {
    for (const Extents& extents : {Extents{5, 24, 16}, Extents{70, 33, 40}}) {
      for (const Transpose transpose_a : kTransposes) {
        for (const Transpose transpose_b : kTransposes) {
          bench.check(dtype, dtype, extents,
                      {transpose_a, transpose_b, 0, Addend::none, false, kPadding});
          bench.check(dtype, dtype, extents,
                      {transpose_a, transpose_b, 1, Addend::elsewhere, true, kPadding});
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(bf16_factors_add_up_in_an_f32_result) {
  GemmBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const Extents& extents : {Extents{40, 24, 16}, Extents{128, 72, 264}}) {
      bench.check(dtype, DType::f32, extents,
                  {Transpose::yes, Transpose::no, 0, Addend::none, false, 0});
      bench.check(dtype, DType::f32, extents,
                  {Transpose::yes, Transpose::no, 1, Addend::in_place, false, 0});
    }
  }
}

BOOST_AUTO_TEST_CASE(numbers_of_8_bits_times_their_scales_equal_f64) {
  ScaledBench bench(test_device());
  for (const ScaleMode mode : {ScaleMode::tensor, ScaleMode::row}) {
    for (const DType in_a : {DType::e4m3, DType::e5m2}) {
      for (const Extents& extents : {Extents{16, 16, 16}, Extents{160, 96, 272}}) {
        for (const Addend addend : {Addend::none, Addend::in_place, Addend::elsewhere}) {
          for (const bool has_bias : {false, true}) {
            const Variant variant{
                Transpose::no, Transpose::yes, addend == Addend::none ? 0.0F : 0.5F,
                addend,        has_bias,       0};
            for (const DType out : bench.float_types()) {
              bench.check(in_a, out, mode, Accumulation::full, extents, variant);
              bench.check(in_a, out, mode, Accumulation::fast, extents, variant);
            }
          }
        }
      }
    }
  }
}

// The CPU takes every layout, and multiplies exactly what the numbers of 8 bits times their scales
// are in f32.
BOOST_AUTO_TEST_CASE(the_cpu_gives_the_bits_of_the_f32_product,
                     *boost::unit_test::enable_if<TESSERA_TEST_DEVICE == DeviceKind::cpu>()) {
  ScaledBench bench(test_device());
  for (const ScaleMode mode : {ScaleMode::tensor, ScaleMode::row}) {
    for (const Extents& extents : {Extents{5, 64, 33}, Extents{65, 129, 31}}) {
      for (const Transpose transpose_a : kTransposes) {
        for (const Transpose transpose_b : kTransposes) {
          for (const Index padding : {0, 3}) {
            const Variant variant{transpose_a, transpose_b, 0, Addend::none, false, padding};
            bench.check(DType::e5m2, DType::f32, mode, Accumulation::full, extents, variant);
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(operands_whose_types_and_scales_do_not_go_together_are_refused) {
  TestBench bench(test_device());
  constexpr Index kSize = 16;
  TestTensor plain = bench.normal(DType::f32, {kSize, kSize});
  TestTensor eight = bench.normal(DType::e4m3, {kSize, kSize});
  TestTensor one = bench.of({2}, DType::f32, {1});
  TestTensor each = bench.normal(DType::f32, {kSize});
  const GemmOperand off(eight.view(), ScaleMode::tensor, each.view().slice(1, 2));
  TestTensor d = bench.poisoned(DType::f32, {kSize, kSize});
  TestTensor workspace = bench.poisoned(
      DType::u8,
      {static_cast<Index>(scaled_gemm_workspace_bytes(test_device().kind, kSize, kSize, kSize))});
  const auto run = [&](const GemmOperand& a, const GemmOperand& b, Accumulation accumulation) {
    bench.kernels().gemm({.m = kSize,
                          .n = kSize,
                          .k = kSize,
                          .transpose_a = Transpose::no,
                          .transpose_b = Transpose::yes,
                          .a = a,
                          .lda = kSize,
                          .b = b,
                          .ldb = kSize,
                          .beta = 0,
                          .c = {},
                          .bias = {},
                          .d = d.view(),
                          .ldd = kSize,
                          .workspace = workspace.view(),
                          .accumulation = accumulation},
                         bench.stream());
  };
  const auto whole = [&](TestTensor& tensor) {
    return GemmOperand(tensor.view(), ScaleMode::tensor, one.view());
  };
  const auto rows = [&](TestTensor& scales) {
    return GemmOperand(eight.view(), ScaleMode::row, scales.view());
  };
  run(whole(eight), whole(eight), Accumulation::fast);
  run(rows(each), rows(each), Accumulation::full);
  bench.stream().synchronize();
  for (const auto& [a, b, accumulation] :
       {std::tuple{GemmOperand(eight.view()), whole(eight), Accumulation::full},
        std::tuple{GemmOperand(eight.view()), GemmOperand(eight.view()), Accumulation::full},
        std::tuple{whole(plain), whole(eight), Accumulation::full},
        std::tuple{whole(eight), rows(each), Accumulation::full},
        std::tuple{rows(each), rows(one), Accumulation::full},
        std::tuple{off, whole(eight), Accumulation::full},
        std::tuple{whole(eight), off, Accumulation::full},
        std::tuple{GemmOperand(plain.view()), GemmOperand(plain.view()), Accumulation::fast}}) {
    BOOST_CHECK_THROW(run(a, b, accumulation), ContractError);
  }
}

BOOST_AUTO_TEST_CASE(two_runs_give_the_same_bits) {
  TestBench bench(test_device());
  constexpr Index kSize = 192;
  TestTensor workspace =
      bench.poisoned(DType::u8, {static_cast<Index>(gemm_workspace_bytes(test_device().kind))});
  for (const DType dtype : bench.float_types()) {
    TestTensor a = bench.normal(dtype, {kSize, kSize});
    TestTensor b = bench.normal(dtype, {kSize, kSize});
    const auto run = [&] {
      TestTensor d = bench.poisoned(dtype, {kSize, kSize});
      bench.kernels().gemm({.m = kSize,
                            .n = kSize,
                            .k = kSize,
                            .transpose_a = Transpose::no,
                            .transpose_b = Transpose::no,
                            .a = a.view(),
                            .lda = kSize,
                            .b = b.view(),
                            .ldb = kSize,
                            .beta = 0,
                            .c = {},
                            .bias = {},
                            .d = d.view(),
                            .ldd = kSize,
                            .workspace = workspace.optional()},
                           bench.stream());
      return bench.read(d.view());
    };
    check_equal(run(), run(), "d");
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
