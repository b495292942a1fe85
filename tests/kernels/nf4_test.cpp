#include "kernels/nf4.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "kernels/base/error.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

constexpr std::array kTypes = {DType::f32, DType::bf16};
// Of one block, of blocks that are cut, of a thread's words, and of more than one block of scales.
constexpr std::array<Index, 20> kCounts = {1,    2,    7,     8,     15,    16,   17,
                                           63,   64,   65,    127,   128,   255,  1000,
                                           4095, 8192, 16383, 16384, 16385, 70001};

double normal_quantile(double probability) {
  double low = -10;
  double high = 10;
  while (high - low > 1e-12) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < probability ? low : high) = middle;
  }
  return low;
}

std::vector<float> floats(const std::vector<double>& numbers) {
  return {numbers.begin(), numbers.end()};
}

struct Quantized {
  std::vector<std::uint8_t> codes;  // one an element
  std::vector<std::uint8_t> scale_codes;
  std::vector<float> scales;
  float mean = 0;
};

// The nearest of `numbers`, ascending, to `value`, by search among all of them; of two as near the
// first. Differences are rounded to f32, as bitsandbytes has them.
template <std::size_t kSize>
std::uint8_t nearest(const std::array<float, kSize>& numbers, float value) {
  std::size_t best = 0;
  for (std::size_t k = 1; k < kSize; ++k) {
    if (std::abs(value - numbers[k]) < std::abs(value - numbers[best])) {
      best = k;
    }
  }
  return static_cast<std::uint8_t>(best);
}

float largest(const std::vector<float>& values, std::size_t first, std::size_t count) {
  float magnitude = 0;
  for (std::size_t i = first; i < std::min(first + count, values.size()); ++i) {
    magnitude = std::max(magnitude, std::abs(values[i]));
  }
  return magnitude;
}

// A block of zeros takes the code of 0.
Quantized expected(const std::vector<float>& values) {
  Quantized result;
  std::vector<float> absmax;
  double sum = 0;
  for (std::size_t first = 0; first < values.size(); first += 64) {
    absmax.push_back(largest(values, first, 64));
    sum += static_cast<double>(absmax.back());
    for (std::size_t i = first; i < std::min(first + 64, values.size()); ++i) {
      result.codes.push_back(
          absmax.back() == 0 ? 7 : nearest(kNf4Values, values[i] * (1.0F / absmax.back())));
    }
  }
  result.mean = static_cast<float>(sum / static_cast<double>(absmax.size()));
  for (float& value : absmax) {
    value -= result.mean;
  }
  for (std::size_t first = 0; first < absmax.size(); first += 256) {
    result.scales.push_back(largest(absmax, first, 256));
    for (std::size_t i = first; i < std::min(first + 256, absmax.size()); ++i) {
      result.scale_codes.push_back(
          result.scales.back() == 0
              ? std::uint8_t{0}
              : nearest(kNf4ScaleMap, absmax[i] * (1.0F / result.scales.back())));
    }
  }
  return result;
}

// What the codes stand for, in f32, then rounded to `dtype`.
std::vector<double> widened(const Quantized& tensor, DType dtype) {
  std::vector<double> values;
  for (std::size_t i = 0; i < tensor.codes.size(); ++i) {
    const float absmax =
        kNf4ScaleMap[tensor.scale_codes[i / 64]] * tensor.scales[i / 64 / 256] + tensor.mean;
    const float value = kNf4Values[tensor.codes[i]] * absmax;
    values.push_back(value);
  }
  return rounded(std::move(values), dtype);
}

// As the packed tensor's bytes.
std::vector<std::byte> packed_bytes(const Quantized& tensor) {
  const Nf4Parts parts = nf4_parts(static_cast<Index>(tensor.codes.size()));
  std::vector<std::byte> packed(static_cast<std::size_t>(parts.bytes));
  for (std::size_t i = 0; i < tensor.codes.size(); i += 2) {
    const unsigned second = i + 1 < tensor.codes.size() ? tensor.codes[i + 1] : 7U;
    packed[i / 2] = static_cast<std::byte>(tensor.codes[i] << 4U | second);
  }
  std::memcpy(packed.data() + parts.scale_codes, tensor.scale_codes.data(),
              tensor.scale_codes.size());
  std::memcpy(packed.data() + parts.scale_scales, tensor.scales.data(),
              tensor.scales.size() * sizeof(float));
  std::memcpy(packed.data() + parts.mean, &tensor.mean, sizeof(float));
  return packed;
}

std::vector<std::byte> quantized(const std::vector<float>& values, Index threads,
                                 std::byte before = std::byte{0xFF}) {
  std::vector<std::byte> packed(
      static_cast<std::size_t>(nf4_parts(static_cast<Index>(values.size())).bytes), before);
  quantize_nf4("some.weight", values, packed, threads);
  return packed;
}

TestTensor on_device(TestBench& bench, const std::vector<std::byte>& packed) {
  std::vector<double> numbers;
  numbers.reserve(packed.size());
  for (const std::byte byte : packed) {
    numbers.push_back(std::to_integer<int>(byte));
  }
  return bench.of(numbers, DType::u8, {std::ssize(packed)});
}

void check_bytes(const std::vector<std::byte>& actual, const std::vector<std::byte>& wanted,
                 const std::string& what) {
  const auto [a, b] = std::mismatch(actual.begin(), actual.end(), wanted.begin(), wanted.end());
  BOOST_CHECK_MESSAGE(
      a == actual.end() && b == wanted.end(),
      what << ": byte " << a - actual.begin() << " of " << wanted.size() << " is another one");
}

}  // namespace

BOOST_AUTO_TEST_SUITE(nf4)

// 8 quantiles below and 9 above 0, of which the outermost are 1, as the paper's appendix E has them.
BOOST_AUTO_TEST_CASE(the_sixteen_values_are_quantiles_of_the_normal_distribution) {
  constexpr double kOffset = 0.9677083;
  const double outermost = normal_quantile(kOffset);
  for (std::size_t k = 0; k < 8; ++k) {
    const auto steps = static_cast<double>(k);
    const double below = kOffset + (0.5 - kOffset) * steps / 7;
    const double above = kOffset + (0.5 - kOffset) * steps / 8;
    BOOST_TEST(static_cast<double>(kNf4Values[k]) == -normal_quantile(below) / outermost,
               boost::test_tools::tolerance(2e-6));
    BOOST_TEST(static_cast<double>(kNf4Values[15 - k]) == normal_quantile(above) / outermost,
               boost::test_tools::tolerance(2e-6));
  }
}

BOOST_AUTO_TEST_CASE(scale_codes_stand_for_seven_decades_of_either_sign) {
  std::vector<double> wanted = {0, 1};
  for (int decade = 0; decade < 7; ++decade) {
    const int parts = 1 << decade;
    for (int part = 0; part < parts; ++part) {
      const double number = std::pow(10, decade - 6) * (0.1 + 0.9 * (part + 0.5) / parts);
      wanted.push_back(number);
      wanted.push_back(-number);
    }
  }
  std::ranges::sort(wanted);
  const std::vector<double> map(kNf4ScaleMap.begin(), kNf4ScaleMap.end());
  std::vector<double> bounds;
  for (const double number : wanted) {
    bounds.push_back(std::abs(number) * 2e-7);
  }
  check_close(map, wanted, bounds, "map");
}

BOOST_AUTO_TEST_CASE(codes_and_scales_are_the_nearest_ones) {
  TestBench bench(test_device());
  for (const Index count : kCounts) {
    for (const DType type : kTypes) {
      const std::vector<float> values = floats(bench.normal(type, {count}, 0.02).values);
      check_bytes(quantized(values, 1), packed_bytes(expected(values)),
                  std::to_string(count) + " of " + std::string(dtype_name(type)));
    }
  }
}

BOOST_AUTO_TEST_CASE(values_between_two_codes_take_the_lower_one) {
  std::vector<float> values(64);
  values[63] = 1;
  std::vector<std::uint8_t> codes;
  for (std::size_t k = 0; k < 15; ++k) {
    const float border = (kNf4Values[k] + kNf4Values[k + 1]) / 2;
    values[2 * k] = border;
    values[2 * k + 1] = std::nextafter(border, 2.0F);
    codes.push_back(static_cast<std::uint8_t>(k << 4U | (k + 1)));
  }
  const std::vector<std::byte> packed = quantized(values, 1);
  for (std::size_t k = 0; k < 15; ++k) {
    BOOST_TEST(std::to_integer<int>(packed[k]) == codes[k]);
  }
}

BOOST_AUTO_TEST_CASE(zeros_and_tiny_numbers_are_zeros) {
  TestBench bench(test_device());
  for (const float tiny : {0.0F, -0.0F, 1e-45F, 1e-41F}) {
    std::vector<float> values(200, tiny);
    std::fill(values.begin() + 64, values.begin() + 128, 0.5F);
    values.push_back(0);
    const std::vector<std::byte> bytes = quantized(values, 1);
    BOOST_TEST(std::to_integer<int>(bytes.front()) == 0x77);
    TestTensor packed = on_device(bench, bytes);
    TestTensor out = bench.poisoned(DType::f32, {std::ssize(values)});
    bench.kernels().widen_nf4({.packed = packed.view(), .out = out.view()}, bench.stream());
    const std::vector<double> read = bench.read(out.view());
    BOOST_TEST(std::ranges::count(read, 0.0) == std::ssize(values) - 64);
  }
}

BOOST_AUTO_TEST_CASE(packed_bytes_do_not_depend_on_threads_or_on_what_was_there) {
  TestBench bench(test_device());
  const std::vector<float> values = floats(bench.normal(DType::f32, {300'007}).values);
  const std::vector<std::byte> alone = quantized(values, 1);
  for (const Index threads : {2, 3, 7}) {
    check_bytes(quantized(values, threads, std::byte{0x5A}), alone,
                std::to_string(threads) + " threads");
  }
}

BOOST_AUTO_TEST_CASE(values_that_are_not_finite_are_refused_by_name_and_place) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values(20'000, 0.5F);
    values[17'003] = bad;
    values[19'000] = bad;
    BOOST_CHECK_EXCEPTION((void)quantized(values, 2), FormatError, [](const FormatError& error) {
      BOOST_TEST(error.message().starts_with("some.weight: element 17003 is "));
      return true;
    });
  }
}

// Bit-identical on every device: the reference takes the same steps in f32.
BOOST_AUTO_TEST_CASE(widened_values_are_those_of_the_codes) {
  TestBench bench(test_device());
  for (const Index count : kCounts) {
    const std::vector<float> values = floats(bench.normal(DType::f32, {count}, 0.02).values);
    const Quantized wanted = expected(values);
    TestTensor packed = on_device(bench, packed_bytes(wanted));
    for (const DType type : kTypes) {
      for (const Index begin : {0, 1, 3}) {  // aligned, and not
        TestTensor out = bench.poisoned(type, {count + begin});
        bench.kernels().widen_nf4(
            {.packed = packed.view(), .out = out.view().slice(begin, count + begin)},
            bench.stream());
        check_equal(bench.read(out.view().slice(begin, count + begin)), widened(wanted, type),
                    std::to_string(count) + " as " + std::string(dtype_name(type)));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_device_and_the_cpu_widen_any_bytes_to_the_same_bits) {
  constexpr Index kCount = 1'000'003;
  TestBench bench(test_device());
  TestBench host({DeviceKind::cpu, 0});
  const std::vector<float> values = floats(host.normal(DType::bf16, {kCount}, 3).values);
  std::vector<std::byte> packed = quantized(values, 2);
  // every pair of codes with every scale code
  const Nf4Parts parts = nf4_parts(kCount);
  for (Index i = 0; i < parts.scale_scales; ++i) {
    packed[static_cast<std::size_t>(i)] = static_cast<std::byte>((i / 32 * 7 + i) % 256);
  }
  TestTensor there = on_device(bench, packed);
  TestTensor here = on_device(host, packed);
  for (const DType type : kTypes) {
    TestTensor out = bench.poisoned(type, {kCount});
    TestTensor wanted = host.poisoned(type, {kCount});
    bench.kernels().widen_nf4({.packed = there.view(), .out = out.view()}, bench.stream());
    host.kernels().widen_nf4({.packed = here.view(), .out = wanted.view()}, host.stream());
    check_equal(bench.read(out.view()), host.read(wanted.view()), dtype_name(type));
  }
}

// The paper's promise: the values suit numbers that are normally distributed.
BOOST_AUTO_TEST_CASE(the_error_of_normal_numbers_is_a_tenth_of_their_deviation) {
  constexpr Index kCount = 65'536;
  TestBench bench(test_device());
  const TestTensor normal = bench.normal(DType::f32, {kCount}, 0.02);
  TestTensor packed = on_device(bench, quantized(floats(normal.values), 1));
  TestTensor out = bench.poisoned(DType::f32, {kCount});
  bench.kernels().widen_nf4({.packed = packed.view(), .out = out.view()}, bench.stream());
  const std::vector<double> values = bench.read(out.view());
  double squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    squares += std::pow(values[i] - normal.values[i], 2);
  }
  const double error = std::sqrt(squares / kCount) / 0.02;
  BOOST_TEST(error > 0.08);
  BOOST_TEST(error < 0.1);
}

BOOST_AUTO_TEST_CASE(wrong_sizes_and_types_are_refused) {
  TestBench bench(test_device());
  constexpr Index kCount = 100;
  const Index bytes = nf4_parts(kCount).bytes;
  TestTensor packed = bench.poisoned(DType::u8, {bytes + 16});
  TestTensor out = bench.poisoned(DType::f32, {kCount});
  TestTensor integers = bench.poisoned(DType::i32, {kCount});
  const auto widen = [&](const ConstTensorView& from, const TensorView& to) {
    bench.kernels().widen_nf4({.packed = from, .out = to}, bench.stream());
  };
  BOOST_CHECK_THROW(widen(packed.view(), out.view()), ContractError);
  BOOST_CHECK_THROW(widen(packed.view().slice(1, bytes + 1), out.view()), ContractError);
  BOOST_CHECK_THROW(widen(packed.view().slice(0, bytes), integers.view()), ContractError);
  const std::vector<float> values(kCount);
  std::vector<std::byte> room(static_cast<std::size_t>(bytes - 1));
  BOOST_CHECK_THROW(quantize_nf4("some.weight", values, room, 1), ContractError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
