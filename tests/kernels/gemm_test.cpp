#include "kernels/gemm.h"

#include <array>
#include <cmath>

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
