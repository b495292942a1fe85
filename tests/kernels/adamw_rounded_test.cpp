// AdamW with moments in fewer bits: the f32 step on what is stored, rounded as moment_code.h says.
#include <cmath>

#include "kernels/adamw.h"
#include "kernels/base/error.h"
#include "kernels/device/moment_code.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

constexpr Index kCount = 20 * kMomentBlock;
constexpr RoundingKey kKey = {.seed = 11, .update = 4, .unit = 3};
constexpr Index kFirst = 7 * kMomentBlock;  // of the unit
constexpr std::uint32_t kLowerHalf = 0xFFFFU;
constexpr DecayMask kSome = {{0xF0F0F0F0U, ~0U, 0, 1, 0x80000000U, 0, 0xFFU, 7}};

std::uint32_t bits_of(double number) {
  return std::bit_cast<std::uint32_t>(static_cast<float>(number));
}

AdamWArgs arguments() {
  return {.master = {},
          .m = {},
          .v = {},
          .grad = {},
          .param = {},
          .lr = 1e-2F,
          .beta1 = 0.9F,
          .beta2 = 0.95F,
          .bias_correction1 = 0.3F,
          .bias_correction2 = 0.2F,
          .eps = 1e-8F,
          .decay = 0.1F,
          .grad_scale = 0.5F};
}

// Moments as they are stored: bf16, or bytes and their scales.
struct Moments {
  std::vector<double> m;
  std::vector<double> v;
  std::vector<double> m_scales;
  std::vector<double> v_scales;
};

std::vector<double> scales_of(const std::vector<double>& numbers) {
  std::vector<double> scales;
  for (std::size_t begin = 0; begin < numbers.size(); begin += kMomentBlock) {
    std::uint32_t largest = 0;
    for (std::size_t i = begin; i < begin + kMomentBlock; ++i) {
      largest = std::max(largest, bits_of(numbers[i]) & detail::kMagnitude);
    }
    scales.push_back(std::bit_cast<float>(block_scale(largest)));
  }
  return scales;
}

Moments encoded(DType type, const std::vector<double>& m, const std::vector<double>& v) {
  Moments moments;
  if (type == DType::u8) {
    moments.m_scales = scales_of(m);
    moments.v_scales = scales_of(v);
  }
  for (std::size_t i = 0; i < m.size(); ++i) {
    const auto element = static_cast<std::uint64_t>(kFirst) + i;
    const std::uint32_t random = random_quad(kKey, element / kRandomQuad)[element % kRandomQuad];
    if (type == DType::u8) {
      moments.m.push_back(signed_code(bits_of(m[i]), bits_of(moments.m_scales[i / kMomentBlock]),
                                      random & kLowerHalf));
      moments.v.push_back(
          unsigned_code(bits_of(v[i]), bits_of(moments.v_scales[i / kMomentBlock]), random >> 16U));
    } else {
      moments.m.push_back(to_float(BFloat16{signed_bf16(bits_of(m[i]), random & kLowerHalf)}));
      moments.v.push_back(to_float(BFloat16{unsigned_bf16(bits_of(v[i]), random >> 16U)}));
    }
  }
  return moments;
}

std::vector<double> widened(DType type, const Moments& moments, bool is_second) {
  const std::vector<double>& stored = is_second ? moments.v : moments.m;
  if (type == DType::bf16) {
    return stored;
  }
  std::vector<double> numbers;
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const auto code = static_cast<std::uint8_t>(stored[i]);
    const std::size_t block = i / kMomentBlock;
    numbers.push_back(is_second ? unsigned_number(code, bits_of(moments.v_scales[block]))
                                : signed_number(code, bits_of(moments.m_scales[block])));
  }
  return numbers;
}

// The numbers of one step, and the moments that were there before.
struct Start {
  std::vector<double> master;
  std::vector<double> grad;
  Moments moments;
};

Start start_of(TestBench& bench, DType type) {
  Start start;
  start.master = bench.normal(DType::f32, {kCount}, 0.02).values;
  start.grad = bench.normal(DType::f32, {kCount}, 1e-2).values;
  std::vector<double> m = bench.normal(DType::f32, {kCount}, 1e-3).values;
  std::vector<double> v = bench.normal(DType::f32, {kCount}, 1e-7, 1e-6).values;
  for (std::size_t i = 0; i < v.size(); ++i) {
    v[i] = std::abs(v[i]) * std::exp2(-static_cast<double>(i % 40));  // of all sizes
    m[i] *= std::exp2(-static_cast<double>(i % 20));
    if (i < kMomentBlock) {  // a block without moments and gradient
      m[i] = v[i] = start.grad[i] = 0;
    }
  }
  start.moments = encoded(type, m, v);
  return start;
}

// Cuts are multiples of 256.
struct End {
  std::vector<double> master;
  std::vector<double> param;
  Moments moments;
};
End step(TestBench& bench, DType type, const Start& start, const std::vector<Index>& cuts) {
  const bool is_bytes = type == DType::u8;
  TestTensor master = bench.of(start.master, DType::f32, {kCount});
  TestTensor grad = bench.of(start.grad, DType::f32, {kCount});
  TestTensor param = bench.poisoned(DType::f32, {kCount});
  TestTensor m = bench.of(start.moments.m, type, {kCount});
  TestTensor v = bench.of(start.moments.v, type, {kCount});
  constexpr Index kBlocks = kCount / kMomentBlock;
  TestTensor m_scales = bench.of(is_bytes ? start.moments.m_scales : std::vector<double>(kBlocks),
                                 DType::f32, {kBlocks});
  TestTensor v_scales = bench.of(is_bytes ? start.moments.v_scales : std::vector<double>(kBlocks),
                                 DType::f32, {kBlocks});
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const Index begin = cuts[i];
    const Index end = cuts[i + 1];
    AdamWArgs args = arguments();
    args.master = master.view().slice(begin, end);
    args.grad = grad.view().slice(begin, end);
    args.param = param.view().slice(begin, end);
    args.m = m.view().slice(begin, end);
    args.v = v.view().slice(begin, end);
    args.rounding.key = kKey;
    args.rounding.first = kFirst + begin;
    args.rounding.decays = kSome;
    if (is_bytes) {
      args.rounding.m_scales = m_scales.view().slice(begin / kMomentBlock, end / kMomentBlock);
      args.rounding.v_scales = v_scales.view().slice(begin / kMomentBlock, end / kMomentBlock);
    }
    bench.kernels().adamw(args, bench.stream());
  }
  End after = {bench.read(master.view()),
               bench.read(param.view()),
               {bench.read(m.view()), bench.read(v.view()), {}, {}}};
  if (is_bytes) {
    after.moments.m_scales = bench.read(m_scales.view());
    after.moments.v_scales = bench.read(v_scales.view());
  }
  return after;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(adamw_rounded)

BOOST_AUTO_TEST_CASE(a_step_is_that_of_f32_moments_rounded_afterwards) {
  TestBench bench(test_device());
  for (const DType type : {DType::bf16, DType::u8}) {
    const Start start = start_of(bench, type);
    const End after = step(bench, type, start, {0, kCount});
    // The same step in f32, element by element for the mask.
    TestTensor master = bench.of(start.master, DType::f32, {kCount});
    TestTensor grad = bench.of(start.grad, DType::f32, {kCount});
    TestTensor param = bench.poisoned(DType::f32, {kCount});
    TestTensor m = bench.of(widened(type, start.moments, false), DType::f32, {kCount});
    TestTensor v = bench.of(widened(type, start.moments, true), DType::f32, {kCount});
    Index begin = 0;
    for (Index i = 1; i <= kCount; ++i) {
      if (i < kCount && kSome[i % kMomentBlock] == kSome[begin % kMomentBlock]) {
        continue;
      }
      AdamWArgs args = arguments();
      args.master = master.view().slice(begin, i);
      args.grad = grad.view().slice(begin, i);
      args.param = param.view().slice(begin, i);
      args.m = m.view().slice(begin, i);
      args.v = v.view().slice(begin, i);
      args.decay = kSome[begin % kMomentBlock] ? args.decay : 0.0F;
      bench.kernels().adamw(args, bench.stream());
      begin = i;
    }
    check_equal(after.master, bench.read(master.view()), "master");
    check_equal(after.param, bench.read(param.view()), "param");
    const Moments expected = encoded(type, bench.read(m.view()), bench.read(v.view()));
    check_equal(after.moments.m, expected.m, "m");
    check_equal(after.moments.v, expected.v, "v");
    check_equal(after.moments.m_scales, expected.m_scales, "scales of m");
    check_equal(after.moments.v_scales, expected.v_scales, "scales of v");
  }
}

BOOST_AUTO_TEST_CASE(pieces_of_whole_blocks_give_the_bits_of_the_whole) {
  TestBench bench(test_device());
  for (const DType type : {DType::bf16, DType::u8}) {
    const Start start = start_of(bench, type);
    const End whole = step(bench, type, start, {0, kCount});
    const End pieces =
        step(bench, type, start, {0, kMomentBlock, 3 * kMomentBlock, 16 * kMomentBlock, kCount});
    check_equal(pieces.master, whole.master, "master");
    check_equal(pieces.moments.m, whole.moments.m, "m");
    check_equal(pieces.moments.v, whole.moments.v, "v");
  }
}

BOOST_AUTO_TEST_CASE(parts_of_blocks_are_refused) {
  TestBench bench(test_device());
  const Start start = start_of(bench, DType::bf16);
  BOOST_CHECK_THROW((void)step(bench, DType::bf16, start, {0, kMomentBlock / 2}), ContractError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
