#include "kernels/quantize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/base/error.h"
#include "kernels/device/float8.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kNanCode = 0x7F;
constexpr std::array kFormats = {DType::e4m3, DType::e5m2};
constexpr std::array kTypes = {DType::f32, DType::bf16};

double largest_of(DType format) {
  return format == DType::e4m3 ? 448 : 57344;
}

double value_of(DType format, unsigned code) {
  const auto bits = static_cast<std::uint8_t>(code);
  return format == DType::e4m3 ? to_float(Float8E4M3{bits}) : to_float(Float8E5M2{bits});
}

// By search among all codes, not by arithmetic on bits.
double nearest_code(DType format, double value) {
  unsigned below = 0;  // codes of positive numbers ascend with them
  unsigned above = format == DType::e4m3 ? 0x7E : 0x7B;
  const double magnitude = std::abs(value);
  while (above - below > 1) {
    const unsigned middle = (below + above) / 2;
    (value_of(format, middle) <= magnitude ? below : above) = middle;
  }
  const double down = magnitude - value_of(format, below);
  const double up = value_of(format, above) - magnitude;
  const bool takes_above = up < down || (up == down && above % 2 == 0);
  return (takes_above ? above : below) + (std::signbit(value) ? 0x80 : 0);
}

double expected_scale(const std::vector<double>& x, DType format) {
  double largest = 0;
  for (const double value : x) {
    if (!std::isfinite(value)) {
      return kNan;
    }
    largest = std::max(largest, std::abs(value));
  }
  double scale = 0x1p-63;
  while (largest_of(format) * scale < largest) {
    scale *= 2;
  }
  return scale;
}

struct Quantized {
  std::vector<double> codes;
  std::vector<double> transposed;
  double scale = 0;
  std::vector<std::int64_t> counts;
};

Quantized expected(const std::vector<double>& x, Index rows, Index columns, DType format) {
  Quantized result{.codes = {},
                   .transposed = std::vector<double>(x.size()),
                   .scale = expected_scale(x, format),
                   .counts = {rows * columns, 0, 0}};
  const bool is_finite = std::isfinite(result.scale);
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < columns; ++c) {
      const double value = x[static_cast<std::size_t>(r * columns + c)];
      const double code = is_finite ? nearest_code(format, value / result.scale) : kNanCode;
      result.codes.push_back(code);
      result.transposed[static_cast<std::size_t>(c * rows + r)] = code;
      result.counts[1] += !is_finite && !(std::abs(value) <= largest_of(format)) ? 1 : 0;
      result.counts[2] += value != 0 && (code == 0 || code == 0x80) ? 1 : 0;
    }
  }
  return result;
}

enum class Layouts : std::uint8_t { both, rows, transposed, rows_then_transposed };

class Quantizer {
 public:
  explicit Quantizer(TestBench& bench) : bench_(bench) {}

  Quantized run(TestTensor& x, Index rows, Index columns, DType format, Layouts layouts,
                bool counts) {
    TestTensor largest = bench_.poisoned(DType::f32, {1});
    TestTensor codes = bench_.poisoned(DType::u8, {rows, columns});
    TestTensor transposed = bench_.poisoned(DType::u8, {columns, rows});
    TestTensor scale = bench_.poisoned(DType::f32, {1});
    TestTensor counted =
        bench_.of(std::vector<double>(kQuantizeCounts), DType::i64, {kQuantizeCounts});
    const auto as_codes = [format](const TensorView& view) {
      return TensorView{view.data, format, view.shape, view.device};
    };
    bench_.kernels().abs_max({.x = x.view(), .out = largest.view()}, bench_.stream());
    const bool is_turned = layouts == Layouts::rows_then_transposed;
    const bool by_rows = layouts == Layouts::rows || is_turned;
    bench_.kernels().quantize(
        {.x = x.view(),
         .abs_max = largest.view(),
         .codes = layouts == Layouts::transposed ? TensorView{} : as_codes(codes.view()),
         .transposed = by_rows ? TensorView{} : as_codes(transposed.view()),
         .scale = scale.view(),
         .counts = counts ? counted.view() : TensorView{}},
        bench_.stream());
    if (is_turned) {
      scale = bench_.poisoned(DType::f32, {1});
      bench_.kernels().quantize({.x = as_codes(codes.view()),
                                 .abs_max = largest.view(),
                                 .codes = {},
                                 .transposed = as_codes(transposed.view()),
                                 .scale = scale.view(),
                                 .counts = {}},
                                bench_.stream());
    }
    return {.codes = bench_.read(codes.view()),
            .transposed = bench_.read(transposed.view()),
            .scale = bench_.read(scale.view()).front(),
            .counts = bench_.read_words(counted.view())};
  }

  void check(TestTensor& x, Index rows, Index columns, const std::string& what) {
    for (const DType format : kFormats) {
      BOOST_TEST_CONTEXT(what << " as " << dtype_name(format) << ", " << rows << " x " << columns) {
        const Quantized wanted = expected(x.values, rows, columns, format);
        const Quantized both = run(x, rows, columns, format, Layouts::both, true);
        check_equal({both.scale}, {wanted.scale}, "scale");
        check_equal(both.codes, wanted.codes, "codes");
        check_equal(both.transposed, wanted.transposed, "transposed codes");
        BOOST_TEST(both.counts == wanted.counts, boost::test_tools::per_element());
        const Quantized by_rows = run(x, rows, columns, format, Layouts::rows, false);
        check_equal(by_rows.codes, wanted.codes, "codes alone");
        const Quantized by_columns = run(x, rows, columns, format, Layouts::transposed, false);
        check_equal(by_columns.transposed, wanted.transposed, "transposed codes alone");
        check_equal({by_rows.scale, by_columns.scale}, {wanted.scale, wanted.scale}, "scales");
        const Quantized turned =
            run(x, rows, columns, format, Layouts::rows_then_transposed, false);
        check_equal(turned.transposed, wanted.transposed, "codes that were transposed");
        check_equal({turned.scale}, {wanted.scale}, "their scale");
        BOOST_TEST(by_rows.counts == std::vector<std::int64_t>(3),
                   boost::test_tools::per_element());
      }
    }
  }

 private:
  TestBench& bench_;
};

struct Extents {
  Index rows;
  Index columns;
};
// Odd, of one tile, of tiles that are cut, and such as the GEMMs have.
constexpr std::array<Extents, 9> kExtents = {
    {{1, 1}, {3, 5}, {16, 16}, {64, 8}, {127, 65}, {132, 72}, {256, 192}, {300, 260}, {1, 513}}};

}  // namespace

BOOST_AUTO_TEST_SUITE(quantize)

BOOST_AUTO_TEST_CASE(codes_of_both_layouts_are_the_nearest_numbers) {
  TestBench bench(test_device());
  Quantizer quantizer(bench);
  for (const DType type : kTypes) {
    for (const auto& [rows, columns] : kExtents) {
      for (const double deviation : {1.0, 1e-6}) {
        TestTensor x = bench.normal(type, {rows, columns}, deviation);
        quantizer.check(x, rows, columns, "normal numbers");
      }
    }
  }
}

// Magnitudes over all of f32's exponents: most of them underflow.
BOOST_AUTO_TEST_CASE(numbers_far_below_the_largest_become_subnormal_and_zero) {
  TestBench bench(test_device());
  Quantizer quantizer(bench);
  constexpr Index kRows = 20;
  constexpr Index kColumns = 24;
  for (const DType type : kTypes) {
    std::vector<double> numbers;
    for (Index i = 0; i < kRows * kColumns; ++i) {
      const double mantissa = 1 + static_cast<double>(i % 7) / 8;
      numbers.push_back((i % 2 == 0 ? 1 : -1) * std::ldexp(mantissa, static_cast<int>(-(i % 60))));
    }
    TestTensor x = bench.of(numbers, type, {kRows, kColumns});
    quantizer.check(x, kRows, kColumns, "many magnitudes");
  }
}

BOOST_AUTO_TEST_CASE(tensors_of_zeros_tiny_and_huge_numbers) {
  TestBench bench(test_device());
  Quantizer quantizer(bench);
  constexpr Index kRows = 4;
  constexpr Index kColumns = 16;
  constexpr auto kCount = static_cast<std::size_t>(kRows * kColumns);
  for (const DType type : kTypes) {
    for (const double number : {0.0, -0.0, 0x1p-149, 0x1p-126, 0x1p-80, 0x1p-63, 0x1.8p-55, 1.0,
                                448.0, 449.0, 57344.0, 0x1.8p127, 0x1.FEp127, -0x1.FEp127}) {
      std::vector<double> numbers(kCount);
      numbers[kCount / 2] = number;
      numbers[3] = number / 3;
      TestTensor x = bench.of(numbers, type, {kRows, kColumns});
      quantizer.check(x, kRows, kColumns, "zeros beside " + std::to_string(number));
    }
  }
}

BOOST_AUTO_TEST_CASE(an_infinity_or_nan_makes_the_whole_tensor_nan) {
  TestBench bench(test_device());
  Quantizer quantizer(bench);
  for (const DType type : kTypes) {
    for (const auto& [rows, columns] : {Extents{4, 16}, Extents{130, 67}}) {
      for (const double number : {kInfinity, -kInfinity, kNan, -kNan}) {
        std::vector<double> numbers(static_cast<std::size_t>(rows * columns), 0.5);
        numbers[numbers.size() - 2] = number;
        numbers[0] = 1000;  // finite, and the largest code of e4m3 is less
        TestTensor x = bench.of(numbers, type, {rows, columns});
        quantizer.check(x, rows, columns, "with " + std::to_string(number));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(the_largest_magnitude_is_found_wherever_it_is) {
  TestBench bench(test_device());
  for (const DType type : kTypes) {
    for (const Index count : {1, 2, 7, 8, 513, 4096, 100'003, 1'200'000}) {
      for (const double place : {0.0, 0.3, 1.0}) {
        std::vector<double> numbers = bench.normal(type, {count}).values;
        const auto at = static_cast<std::size_t>(place * static_cast<double>(count - 1));
        numbers[at] = -12;
        TestTensor x = bench.of(numbers, type, {count});
        TestTensor largest = bench.poisoned(DType::f32, {1});
        bench.kernels().abs_max({.x = x.view(), .out = largest.view()}, bench.stream());
        check_equal(bench.read(largest.view()), {12}, "largest of " + std::to_string(count));
      }
    }
  }
}

// Of what is multiplied: the code times the scale is the same number for either layout, and as
// near as 3 and 2 bits of mantissa allow.
BOOST_AUTO_TEST_CASE(scales_are_the_smallest_powers_of_two_that_cover_the_largest_number) {
  for (const DType format : kFormats) {
    for (int exponent = -150; exponent < 128; ++exponent) {
      for (const double mantissa : {1.0, 1.5, 1.75, 1.7500001, 1.9999999}) {
        const auto largest = static_cast<float>(std::ldexp(mantissa, exponent));
        if (!std::isfinite(largest)) {
          continue;
        }
        const double scale = std::bit_cast<float>(
            float8_scale_bits(std::bit_cast<std::uint32_t>(largest), float8_exponent(format)));
        int ignored = 0;
        BOOST_TEST(std::frexp(scale, &ignored) == 0.5);
        BOOST_TEST(largest_of(format) * scale >= largest);
        BOOST_TEST((scale == 0x1p-63 || largest_of(format) * scale / 2 < largest));
        BOOST_TEST(std::bit_cast<float>(float8_factor_bits(
                       std::bit_cast<std::uint32_t>(static_cast<float>(scale)))) == 1 / scale);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(what_quantize_does_not_take_is_refused) {
  TestBench bench(test_device());
  TestTensor x = bench.normal(DType::f32, {4, 8});
  TestTensor one = bench.of({1}, DType::f32, {1});
  TestTensor codes = bench.poisoned(DType::e4m3, {4, 8});
  TestTensor others = bench.poisoned(DType::e5m2, {8, 4});
  TestTensor few = bench.poisoned(DType::e4m3, {4, 7});
  const QuantizeArgs good = {.x = x.view(),
                             .abs_max = one.view(),
                             .codes = codes.view(),
                             .transposed = {},
                             .scale = one.view(),
                             .counts = {}};
  const auto refused = [&](const auto& change) {
    QuantizeArgs args = good;
    change(args);
    BOOST_CHECK_THROW(bench.kernels().quantize(args, bench.stream()), ContractError);
  };
  BOOST_CHECK_NO_THROW(bench.kernels().quantize(good, bench.stream()));
  refused([&](QuantizeArgs& args) { args.codes = {}; });
  refused([&](QuantizeArgs& args) { args.codes = few.view(); });
  refused([&](QuantizeArgs& args) { args.transposed = others.view(); });
  refused([&](QuantizeArgs& args) { args.codes = x.view(); });
  refused([&](QuantizeArgs& args) { args.x = codes.view(); });
  refused([&](QuantizeArgs& args) {
    args.x = codes.view();
    args.codes = {};
    args.transposed = others.view();
  });
  refused([&](QuantizeArgs& args) { args.scale = {}; });
  refused([&](QuantizeArgs& args) { args.counts = one.view(); });
  bench.stream().synchronize();
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
