#include "kernels/adapter_gradients.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/base/error.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

struct Sizes {
  Index tokens;
  Index out;
  Index rank;
};

// Where matrices begin and how far their rows are apart.
struct Layout {
  Index more_of_y = 0;  // elements between rows of d_y
  Index more_of_hidden = 0;
  Index begin = 0;  // of each matrix
};

// Elements that are looked at: each of so many tokens, each of so many rows of B.
struct Every {
  Index token = 1;
  Index row = 1;
};

constexpr float kScale = 1.5F;

struct Gradients {
  std::vector<double> d_hidden;
  std::vector<double> d_b;
};

class AdapterBench : public TestBench {
 public:
  explicit AdapterBench(Device device)
      : TestBench(device),
        workspace_(poisoned(DType::u8, {static_cast<Index>(gemm_workspace_bytes(device.kind))})) {}

  void check(const Sizes& sizes, DType in, DType out, const Layout& layout = {},
             const Every& every = {}) {
    BOOST_TEST_CONTEXT(sizes.tokens << " tokens, " << sizes.out << " rows, rank " << sizes.rank
                                    << ", " << dtype_name(in) << " to " << dtype_name(out) << ", "
                                    << layout.more_of_y << " and " << layout.more_of_hidden
                                    << " between rows, from " << layout.begin) {
      make(sizes, in, layout);
      const Gradients both = run(in, out, AdapterGradients::both);
      check_hidden(both.d_hidden, in, every);
      check_b(both.d_b, out, every);
      check_equal(without_nan(run(in, out, AdapterGradients::both)), without_nan(both), "again");
      Gradients apart = run(in, out, AdapterGradients::hidden);
      check_untouched(apart.d_b, "d_b");
      Gradients of_b = run(in, out, AdapterGradients::b);
      check_untouched(of_b.d_hidden, "d_hidden");
      apart.d_b = of_b.d_b;
      check_equal(without_nan(apart), without_nan(both), "one after the other");
    }
  }

 private:
  // What is between rows, and before the first, is NaN: nothing may depend on it.
  TestTensor matrix(DType dtype, Index rows, Index columns, Index ld) {
    TestTensor tensor = normal(dtype, {layout_.begin + rows * ld});
    for (std::size_t i = 0; i < tensor.values.size(); ++i) {
      const Index at = static_cast<Index>(i) - layout_.begin;
      if (at < 0 || at % ld >= columns) {
        tensor.values[i] = std::numeric_limits<double>::quiet_NaN();
      }
    }
    return of(tensor.values, dtype, {std::ssize(tensor.values)});
  }

  void make(const Sizes& sizes, DType in, const Layout& layout) {
    sizes_ = sizes;
    layout_ = layout;
    ld_y_ = sizes.out + layout.more_of_y;
    ld_hidden_ = sizes.rank + layout.more_of_hidden;
    d_y_ = matrix(in, sizes.tokens, sizes.out, ld_y_);
    b_ = matrix(in, sizes.out, sizes.rank, sizes.rank);
    hidden_ = matrix(in, sizes.tokens, sizes.rank, ld_hidden_);
  }

  Gradients run(DType in, DType out, AdapterGradients needed) {
    TestTensor d_hidden = poisoned(in, {layout_.begin + sizes_.tokens * ld_hidden_});
    TestTensor d_b = poisoned(out, {layout_.begin + sizes_.out * sizes_.rank});
    const auto from_begin = [&](TestTensor& tensor) {
      const TensorView view = tensor.view();
      return view.slice(layout_.begin, view.count());
    };
    kernels().adapter_gradients({.tokens = sizes_.tokens,
                                 .out = sizes_.out,
                                 .rank = sizes_.rank,
                                 .d_y = from_begin(d_y_),
                                 .ld_y = ld_y_,
                                 .b = from_begin(b_),
                                 .hidden = from_begin(hidden_),
                                 .d_hidden = from_begin(d_hidden),
                                 .ld_hidden = ld_hidden_,
                                 .d_b = from_begin(d_b),
                                 .workspace = workspace_.optional(),
                                 .scale = kScale,
                                 .needed = needed},
                                stream());
    return {read(d_hidden.view()), read(d_b.view())};
  }

  [[nodiscard]] double y(Index token, Index row) const {
    return d_y_.values[static_cast<std::size_t>(layout_.begin + token * ld_y_ + row)];
  }
  [[nodiscard]] double b(Index row, Index k) const {
    return b_.values[static_cast<std::size_t>(layout_.begin + row * sizes_.rank + k)];
  }
  [[nodiscard]] std::size_t hidden_at(Index token, Index k) const {
    return static_cast<std::size_t>(layout_.begin + token * ld_hidden_ + k);
  }

  // s times the sum over `depth` of factor(i), within a rounding of the result and one of each term.
  template <typename Factors>
  struct Sum {
    double value = 0;
    double bound = 0;
    Sum(Index depth, DType out, const Factors& term) {
      double terms = 0;
      for (Index i = 0; i < depth; ++i) {
        value += term(i);
        terms += std::abs(term(i));
      }
      value *= static_cast<double>(kScale);
      bound = std::abs(value) * unit_roundoff(out) + static_cast<double>(kScale) * terms *
                                                         static_cast<double>(depth + 4) *
                                                         unit_roundoff(DType::f32);
    }
  };

  void check_hidden(const std::vector<double>& actual, DType out, const Every& every) {
    std::vector<double> looked_at;
    std::vector<double> expected;
    std::vector<double> bounds;
    for (Index token = 0; token < sizes_.tokens; token += every.token) {
      for (Index k = 0; k < sizes_.rank; ++k) {
        const Sum sum(sizes_.out, out, [&](Index row) { return y(token, row) * b(row, k); });
        looked_at.push_back(actual[hidden_at(token, k)]);
        expected.push_back(sum.value);
        bounds.push_back(sum.bound);
      }
    }
    check_close(looked_at, expected, bounds, "d_hidden");
    const auto untouched = std::ranges::count_if(actual, [](double v) { return std::isnan(v); });
    BOOST_TEST(untouched == std::ssize(actual) - sizes_.tokens * sizes_.rank);
  }

  void check_b(const std::vector<double>& actual, DType out, const Every& every) {
    std::vector<double> looked_at;
    std::vector<double> expected;
    std::vector<double> bounds;
    for (Index row = 0; row < sizes_.out; row += every.row) {
      for (Index k = 0; k < sizes_.rank; ++k) {
        const Sum sum(sizes_.tokens, out, [&](Index token) {
          return y(token, row) * hidden_.values[hidden_at(token, k)];
        });
        looked_at.push_back(
            actual[static_cast<std::size_t>(layout_.begin + row * sizes_.rank + k)]);
        expected.push_back(sum.value);
        bounds.push_back(sum.bound);
      }
    }
    check_close(looked_at, expected, bounds, "d_b");
  }

  static void check_untouched(const std::vector<double>& actual, const std::string& what) {
    BOOST_CHECK_MESSAGE(std::ranges::all_of(actual, [](double v) { return std::isnan(v); }),
                        what << " is written, and is not needed");
  }

  // Both in a row. What is between rows is left out, which is_close would take for a difference.
  static std::vector<double> without_nan(const Gradients& gradients) {
    std::vector<double> numbers;
    for (const std::vector<double>* all : {&gradients.d_hidden, &gradients.d_b}) {
      std::ranges::copy_if(*all, std::back_inserter(numbers),
                           [](double v) { return !std::isnan(v); });
    }
    return numbers;
  }

  Sizes sizes_{};
  Layout layout_;
  Index ld_y_ = 0;
  Index ld_hidden_ = 0;
  TestTensor d_y_;
  TestTensor b_;
  TestTensor hidden_;
  TestTensor workspace_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(adapter_gradients)

// Of less than a tile, of whole ones, and of parts of a last one; of blocks that have tokens of two
// groups of columns.
BOOST_AUTO_TEST_CASE(both_gradients_equal_f64) {
  AdapterBench bench(test_device());
  for (const DType type : bench.float_types()) {
    for (const Sizes& sizes :
         {Sizes{1, 8, 8}, Sizes{5, 24, 16}, Sizes{128, 512, 16}, Sizes{129, 520, 8},
          Sizes{300, 264, 16}, Sizes{257, 704, 32}, Sizes{200, 1032, 64}, Sizes{6000, 2104, 8}}) {
      bench.check(sizes, type, type);
    }
  }
}

BOOST_AUTO_TEST_CASE(rows_may_lie_apart_and_nothing_between_them_is_read_or_written) {
  AdapterBench bench(test_device());
  for (const DType type : bench.float_types()) {
    bench.check({150, 200, 16}, type, type, {.more_of_y = 56, .more_of_hidden = 32});
    bench.check({260, 1021, 32}, type, type, {.more_of_y = 3, .more_of_hidden = 8});
    bench.check({40, 513, 64}, type, type, {.more_of_y = 1031, .more_of_hidden = 128});
  }
}

BOOST_AUTO_TEST_CASE(ranks_between_those_that_have_a_kernel) {
  AdapterBench bench(test_device());
  for (const DType type : bench.float_types()) {
    for (const Index rank : {24, 40, 48, 56}) {
      bench.check({140, 136, rank}, type, type, {.more_of_hidden = 8});
    }
  }
}

BOOST_AUTO_TEST_CASE(other_ranks_and_places_are_the_two_products) {
  AdapterBench bench(test_device());
  for (const DType type : bench.float_types()) {
    for (const Index rank : {1, 3, 12, 72}) {
      bench.check({70, 96, rank}, type, type);
    }
    bench.check({70, 97, 16}, type, type);
    bench.check({70, 96, 16}, type, type, {.more_of_hidden = 1});
    bench.check({70, 96, 16}, type, type, {.begin = 1});
  }
}

BOOST_AUTO_TEST_CASE(gradients_of_b_may_be_f32) {
  AdapterBench bench(test_device());
  for (const DType type : bench.float_types()) {
    for (const Index rank : {8, 16, 20, 32, 64}) {
      bench.check({130, 136, rank}, type, DType::f32);
    }
  }
}

// Two passes over columns: the workspace does not hold partial sums of both groups.
BOOST_AUTO_TEST_CASE(partial_sums_that_do_not_fit_are_made_in_passes,
                     *boost::unit_test::enable_if<TESSERA_TEST_DEVICE == DeviceKind::cuda>()) {
  AdapterBench bench(test_device());
  bench.check({66'000, 520, 64}, DType::bf16, DType::bf16, {}, {.token = 331, .row = 37});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
