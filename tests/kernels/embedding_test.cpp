#include "kernels/embedding.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

struct Extents {
  Index tokens;
  Index vocab;
  Index width;
};
// few tokens of many, many of few, and all the same
constexpr std::array<Extents, 7> kExtents = {{{1, 1, 1},
                                              {5, 100, 7},
                                              {300, 3, 33},
                                              {1000, 1, 8},
                                              {129, 50, 256},
                                              {2000, 700, 40},
                                              {65, 2, 1040}}};

// 0 .. N-1 sorted by (token, position), as the data loader gives it.
std::vector<double> order_of(const std::vector<double>& tokens) {
  std::vector<double> order(tokens.size());
  std::iota(order.begin(), order.end(), 0.0);
  std::stable_sort(order.begin(), order.end(), [&tokens](double a, double b) {
    return tokens[static_cast<std::size_t>(a)] < tokens[static_cast<std::size_t>(b)];
  });
  return order;
}

std::vector<double> backward(TestBench& bench, TestTensor& tokens, TestTensor& d_out,
                             const std::vector<double>& table_before, const Extents& e) {
  TestTensor order = bench.of(order_of(tokens.values), DType::i32, {e.tokens});
  TestTensor d_table = bench.of(table_before, DType::f32, {e.vocab, e.width});
  TestTensor workspace =
      bench.poisoned(DType::u8, {static_cast<Index>(embedding_workspace_bytes(e.tokens, e.width))});
  bench.kernels().embedding_backward({.tokens = tokens.view(),
                                      .order = order.view(),
                                      .d_out = d_out.view(),
                                      .d_table = d_table.view(),
                                      .workspace = workspace.view()},
                                     bench.stream());
  return bench.read(d_table.view());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(embedding)

BOOST_AUTO_TEST_CASE(forward_copies_rows) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const Extents& e : kExtents) {
      TestTensor tokens = bench.integers({e.tokens}, e.vocab);
      TestTensor table = bench.normal(dtype, {e.vocab, e.width});
      std::vector<double> expected;
      for (const double token : tokens.values) {
        const auto row = table.values.begin() + static_cast<Index>(token) * e.width;
        expected.insert(expected.end(), row, row + e.width);
      }
      TestTensor order = bench.of(order_of(tokens.values), DType::i32, {e.tokens});
      for (const ConstTensorView& in_order : {ConstTensorView{}, ConstTensorView(order.view())}) {
        TestTensor out = bench.poisoned(dtype, {e.tokens, e.width});
        bench.kernels().embedding_forward(
            {.tokens = tokens.view(), .order = in_order, .table = table.view(), .out = out.view()},
            bench.stream());
        check_equal(bench.read(out.view()), expected, "out");
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(backward_adds_to_the_table_what_f64_gives) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const Extents& e : kExtents) {
      BOOST_TEST_CONTEXT(e.tokens << " tokens of " << e.vocab << ", width " << e.width) {
        TestTensor tokens = bench.integers({e.tokens}, e.vocab);
        TestTensor d_out = bench.normal(dtype, {e.tokens, e.width});
        const std::vector<double> before = bench.normal(DType::f32, {e.vocab, e.width}).values;
        std::vector<double> expected = before;
        std::vector<double> terms(before.size());
        std::vector<double> additions(before.size());
        for (Index i = 0; i < e.tokens * e.width; ++i) {
          const double token = tokens.values[static_cast<std::size_t>(i / e.width)];
          const auto at =
              static_cast<std::size_t>(static_cast<Index>(token) * e.width + i % e.width);
          const double value = d_out.values[static_cast<std::size_t>(i)];
          expected[at] += value;
          terms[at] += std::abs(value);
          additions[at] += 1;
        }
        std::vector<double> bounds;
        for (std::size_t i = 0; i < terms.size(); ++i) {
          // a row without a token keeps its bits
          bounds.push_back(additions[i] == 0 ? 0
                                             : (terms[i] + std::abs(before[i])) *
                                                   (additions[i] + 1) * unit_roundoff(DType::f32));
        }
        check_close(backward(bench, tokens, d_out, before, e), expected, bounds, "d_table");
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(two_backward_passes_give_the_same_bits) {
  TestBench bench(test_device());
  constexpr Extents kMany = {3000, 40, 24};
  for (const DType dtype : bench.float_types()) {
    TestTensor tokens = bench.integers({kMany.tokens}, kMany.vocab);
    TestTensor d_out = bench.normal(dtype, {kMany.tokens, kMany.width});
    const std::vector<double> zeros(static_cast<std::size_t>(kMany.vocab * kMany.width));
    check_equal(backward(bench, tokens, d_out, zeros, kMany),
                backward(bench, tokens, d_out, zeros, kMany), "d_table");
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
