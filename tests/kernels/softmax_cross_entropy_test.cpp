#include "kernels/softmax_cross_entropy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kScale = 0.125;
constexpr std::int32_t kIgnore = -100;
constexpr std::array<Index, 7> kVocabs = {1, 2, 63, 64, 65, 257, 50257};

// One call: the logits in rows of `ld`, and everything optional.
struct Case {
  std::vector<double> logits;  // [N, ld]; the padding is anything
  Index vocab;
  Index ld;
  std::vector<double> targets;
  std::int32_t ignore_target;
  std::vector<double> weights;  // empty: all 1
  CrossEntropyTerms terms;
};

// In f64, by the formulas of the header, with bounds of an f32 kernel's errors.
struct Expected {
  std::vector<double> loss;
  std::vector<double> loss_bounds;
  std::vector<double> gradient;  // [N, ld]
  std::vector<double> gradient_bounds;
  std::vector<double> correct;
};

double capped(double z, double cap) {
  return cap == 0 || z == -kInfinity ? z : cap * std::tanh(z / cap);
}

void add_row(const Case& c, std::size_t n, DType dtype, Expected& out) {
  const double unit = unit_roundoff(DType::f32);
  const auto vocab = static_cast<std::size_t>(c.vocab);
  const auto ld = static_cast<std::size_t>(c.ld);
  if (static_cast<std::int32_t>(c.targets[n]) == c.ignore_target) {
    out.loss.push_back(0);
    out.loss_bounds.push_back(0);
    out.correct.push_back(0);
    out.gradient.insert(out.gradient.end(), ld, 0.0);
    out.gradient_bounds.insert(out.gradient_bounds.end(), ld, 0.0);
    return;
  }
  const auto target = static_cast<std::size_t>(c.targets[n]);
  const double* raw = c.logits.data() + n * ld;
  const auto cap = static_cast<double>(c.terms.soft_cap);
  const auto s = static_cast<double>(c.terms.label_smoothing);
  const auto z_loss = static_cast<double>(c.terms.z_loss);
  const double weight = c.weights.empty() ? 1 : c.weights[n];
  std::vector<double> z(raw, raw + vocab);
  for (double& value : z) {
    value = capped(value, cap);
  }
  const double largest = *std::max_element(z.begin(), z.end());
  double sum = 0;
  double mean = 0;
  double mean_terms = 0;
  for (const double value : z) {
    sum += std::exp(value - largest);
    mean += value / static_cast<double>(vocab);
    mean_terms += std::abs(value) / static_cast<double>(vocab);
  }
  const double lse = largest + std::log(sum);
  const double smooth = s == 0 ? 0 : s * (lse - mean);
  const double loss = weight * ((1 - s) * (lse - z[target]) + smooth + z_loss * lse * lse);
  // Sums over the row are added up by at least 128 lanes or in f64; an exponential has a relative
  // error of a few units and of its argument's rounding; the soft cap is within 4 units of `cap`.
  const double additions = static_cast<double>(vocab) / 128 + 32;
  const double cap_error = 4 * unit * cap;
  const double lse_error = unit * (additions + 2 * std::abs(lse)) + 2 * cap_error;
  out.loss.push_back(loss);
  out.loss_bounds.push_back(
      weight * ((1 - s) * (lse_error + cap_error + 2 * unit * std::abs(z[target])) +
                (s == 0 ? 0 : s * (lse_error + cap_error + additions * unit * mean_terms)) +
                z_loss * 2 * std::abs(lse) * lse_error) +
      8 * unit * std::abs(loss));
  out.correct.push_back(std::max_element(raw, raw + vocab) == raw + target ? 1 : 0);
  const double share = 1 + 2 * z_loss * lse;
  for (std::size_t v = 0; v < ld; ++v) {
    if (v >= vocab || z[v] == -kInfinity) {
      out.gradient.push_back(0);
      out.gradient_bounds.push_back(0);
      continue;
    }
    const double p = std::exp(z[v] - lse);
    const double of_target = v == target ? 1 - s : 0;
    const double inner = share * p - of_target - s / static_cast<double>(vocab);
    const double ratio = cap == 0 ? 0 : z[v] / cap;
    const double through_cap = 1 - ratio * ratio;
    const double factor = kScale * weight;
    const double inner_terms = share * p + of_target + s / static_cast<double>(vocab);
    const double p_error =
        p * (unit * (additions + 8 + 2 * std::abs(z[v] - largest)) + 3 * cap_error) + 0x1p-124;
    const double inner_error =
        share * p_error + 2 * z_loss * lse_error * p + 4 * unit * inner_terms;
    const double gradient = factor * inner * through_cap;
    out.gradient.push_back(gradient);
    out.gradient_bounds.push_back(
        factor * (inner_error * through_cap + (cap == 0 ? 0 : std::abs(inner) * 16 * unit)) +
        std::abs(gradient) * (unit_roundoff(dtype) + 4 * unit));
  }
}

Expected reference(const Case& c, DType dtype) {
  Expected out;
  for (std::size_t n = 0; n < c.targets.size(); ++n) {
    add_row(c, n, dtype, out);
  }
  return out;
}

// Runs the case with `write` and with `leave`, and compares everything.
void check_case(TestBench& bench, DType dtype, Case c) {
  const auto rows = static_cast<Index>(c.targets.size());
  const Shape shape = {rows, c.ld};
  TestTensor logits = bench.of(c.logits, dtype, shape);
  c.logits = logits.values;  // as rounded
  TestTensor targets = bench.of(c.targets, DType::i32, {rows});
  TestTensor weights = bench.of(c.weights, DType::f32, {static_cast<Index>(c.weights.size())});
  c.weights = weights.values;
  TestTensor scale = bench.of({kScale}, DType::f32, {1});
  TestTensor loss = bench.poisoned(DType::f32, {rows});
  TestTensor loss_only = bench.poisoned(DType::f32, {rows});
  TestTensor correct = bench.poisoned(DType::u8, {rows});
  SoftmaxCrossEntropyArgs args = {.logits = logits.view(),
                                  .vocab = c.vocab,
                                  .ld = c.ld,
                                  .targets = targets.view(),
                                  .ignore_target = c.ignore_target,
                                  .weights = weights.optional(),
                                  .terms = c.terms,
                                  .gradient = LogitsGradient::leave,
                                  .loss = loss_only.view(),
                                  .correct = {},
                                  .scale = scale.view()};
  const Expected expected = reference(c, dtype);
  bench.kernels().softmax_cross_entropy(args, bench.stream());
  check_close(bench.read(loss_only.view()), expected.loss, expected.loss_bounds, "loss alone");
  check_equal(bench.read(logits.view()), c.logits, "logits left alone");
  args.gradient = LogitsGradient::write;
  args.loss = loss.view();
  args.correct = correct.view();
  bench.kernels().softmax_cross_entropy(args, bench.stream());
  check_close(bench.read(loss.view()), expected.loss, expected.loss_bounds, "loss");
  check_equal(bench.read(correct.view()), expected.correct, "correct");
  check_close(bench.read(logits.view()), expected.gradient, expected.gradient_bounds, "gradient");
}

// Logits and targets of `rows` rows; the first targets are 0 and V-1; the padding is NaN.
Case random_case(TestBench& bench, Index rows, Index vocab, Index ld, double deviation) {
  Case c{bench.normal(DType::f32, {rows, ld}, deviation).values,
         vocab,
         ld,
         bench.integers({rows}, vocab).values,
         kIgnore,
         {},
         {}};
  c.targets[0] = 0;
  c.targets[static_cast<std::size_t>(rows - 1)] = static_cast<double>(vocab - 1);
  for (std::size_t i = 0; i < c.logits.size(); ++i) {
    if (static_cast<Index>(i) % ld >= vocab) {
      c.logits[i] = std::nan("");
    }
  }
  return c;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(softmax_cross_entropy)

BOOST_AUTO_TEST_CASE(every_vocabulary_equals_f64_with_and_without_padding) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const Index vocab : kVocabs) {
      for (const Index padding : {0, 7}) {
        BOOST_TEST_CONTEXT("vocabulary " << vocab << " padding " << padding) {
          check_case(bench, dtype, random_case(bench, 5, vocab, vocab + padding, 3));
        }
      }
    }
  }
}

// On CUDA a row of the first three is shared by several blocks, in bf16 and f32; one of the last is
// read twice in f32.
BOOST_AUTO_TEST_CASE(the_widest_vocabularies_equal_f64) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const Index vocab : {128256, 151936, 262147, 400001}) {
      for (const float cap : {0.0F, 30.0F}) {
        BOOST_TEST_CONTEXT("vocabulary " << vocab << " cap " << cap) {
          Case c = random_case(bench, 2, vocab, vocab + 3, 3);
          c.terms.soft_cap = cap;
          check_case(bench, dtype, c);
        }
      }
    }
  }
}

// Where blocks or clusters cut a row, whatever their number: a target in the first and in the last
// column of each part.
BOOST_AUTO_TEST_CASE(targets_at_the_edges_of_every_part_equal_f64) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    const Index vector = 16 / static_cast<Index>(size_in_bytes(dtype));
    for (const Index vocab : {50257, 151936, 262147}) {
      std::vector<double> targets = {0, static_cast<double>(vocab - 1)};
      for (const Index blocks : {2, 4, 8}) {
        const Index vectors = (vocab + vector - 1) / vector;
        const Index part = (vectors + blocks - 1) / blocks * vector;
        for (Index cut = part; cut < vocab; cut += part) {
          targets.insert(targets.end(), {static_cast<double>(cut - 1), static_cast<double>(cut)});
        }
      }
      Case c = random_case(bench, static_cast<Index>(targets.size()), vocab, vocab + 5, 3);
      c.targets = targets;
      check_case(bench, dtype, c);
    }
  }
}

BOOST_AUTO_TEST_CASE(each_optional_term_equals_f64) {
  TestBench bench(test_device());
  const std::array<CrossEntropyTerms, 5> kinds = {{
      {.label_smoothing = 0.1F},
      {.z_loss = 1e-2F},
      {.soft_cap = 5},
      {.soft_cap = 30},
      {.label_smoothing = 0.2F, .z_loss = 1e-3F, .soft_cap = 10},
  }};
  for (const DType dtype : bench.float_types()) {
    for (const CrossEntropyTerms& terms : kinds) {
      for (const Index vocab : {2, 65, 1000}) {
        for (const bool weighted : {false, true}) {
          BOOST_TEST_CONTEXT("vocabulary " << vocab << " smoothing " << terms.label_smoothing
                                           << " z " << terms.z_loss << " cap " << terms.soft_cap
                                           << " weighted " << weighted) {
            Case c = random_case(bench, 4, vocab, vocab + 3, 4);
            c.terms = terms;
            if (weighted) {
              c.weights = {0.5, 2, 0, 1.25};
            }
            check_case(bench, dtype, c);
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(large_logits_are_safe) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const Index vocab : {2, 65, 257}) {
      for (const float cap : {0.0F, 30.0F}) {
        Case c = random_case(bench, 4, vocab, vocab, 3);
        c.terms.soft_cap = cap;
        for (std::size_t i = 0; i < c.logits.size(); i += 3) {
          c.logits[i] = i % 2 == 0 ? 1e4 : -1e4;
        }
        check_case(bench, dtype, c);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(columns_of_minus_infinity_take_no_part) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const CrossEntropyTerms& terms : {CrossEntropyTerms{}, CrossEntropyTerms{.z_loss = 1e-2F},
                                           CrossEntropyTerms{.soft_cap = 5}}) {
      Case c = random_case(bench, 5, 130, 133, 2);
      c.terms = terms;
      for (std::size_t n = 0; n < c.targets.size(); ++n) {
        for (std::size_t v = 0; v < 130; ++v) {
          const auto target = static_cast<std::size_t>(c.targets[n]);
          if (v != target && (v % 3 == 1 || n == 2)) {  // in row 2 only the target takes part
            c.logits[n * 133 + v] = -kInfinity;
          }
        }
      }
      check_case(bench, dtype, c);
    }
  }
}

BOOST_AUTO_TEST_CASE(ignored_rows_give_zeros_also_where_the_value_lies_in_the_vocabulary) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const std::int32_t ignore : {kIgnore, 3}) {
      Case c = random_case(bench, 6, 65, 70, 2);
      c.ignore_target = ignore;
      c.targets = {0, static_cast<double>(ignore), 64, static_cast<double>(ignore), 5, 2};
      check_case(bench, dtype, c);
      c.targets = std::vector<double>(6, static_cast<double>(ignore));
      check_case(bench, dtype, c);
    }
  }
}

BOOST_AUTO_TEST_CASE(ignored_rows_of_nan_give_zeros) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    Case c = random_case(bench, 2, 65, 65, 2);
    c.targets = {kIgnore, 4};
    std::fill(c.logits.begin(), c.logits.begin() + 65, std::nan(""));
    check_case(bench, dtype, c);
  }
}

BOOST_AUTO_TEST_CASE(correct_means_the_first_largest_logit) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const float cap : {0.0F, 2.0F}) {  // with the cap, 100 and 200 are both 2
      Case c{{1, 5, 5, 0,                   // largest first at 1
              1, 5, 5, 0,                   // the target is as large, but not the first
              200, 100, 0, 0,               //
              100, 200, 0, 0},              //
             4,
             4,
             {1, 2, 0, 0},
             kIgnore,
             {},
             {.soft_cap = cap}};
      check_case(bench, dtype, c);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_row_that_is_not_finite_has_a_loss_that_is_not_finite) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const double bad : {std::nan(""), kInfinity}) {
      for (const std::size_t place : {std::size_t{0}, std::size_t{77}, std::size_t{129}}) {
        Case c = random_case(bench, 1, 130, 130, 2);
        c.targets[0] = 3;
        c.logits[place] = bad;
        TestTensor logits = bench.of(c.logits, dtype, {1, c.ld});
        TestTensor targets = bench.of(c.targets, DType::i32, {1});
        TestTensor scale = bench.of({kScale}, DType::f32, {1});
        TestTensor loss = bench.of({0}, DType::f32, {1});
        bench.kernels().softmax_cross_entropy({.logits = logits.view(),
                                               .vocab = c.vocab,
                                               .ld = c.ld,
                                               .targets = targets.view(),
                                               .ignore_target = kIgnore,
                                               .weights = {},
                                               .terms = {},
                                               .gradient = LogitsGradient::write,
                                               .loss = loss.view(),
                                               .correct = {},
                                               .scale = scale.view()},
                                              bench.stream());
        BOOST_CHECK(!std::isfinite(bench.read(loss.view()).front()));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(reference_gradient_equals_central_differences) {
  TestBench bench(test_device());
  Case c = random_case(bench, 3, 9, 9, 2);
  c.terms = {.label_smoothing = 0.1F, .z_loss = 1e-2F, .soft_cap = 4};
  c.weights = {0.5, 2, 1};
  const auto loss = [&c](const std::vector<double>& logits) {
    Case changed = c;
    changed.logits = logits;
    double sum = 0;
    for (const double row : reference(changed, DType::f32).loss) {
      sum += kScale * row;
    }
    return sum;
  };
  check_close(reference(c, DType::f32).gradient, central_differences(loss, c.logits), {1e-8},
              "gradient of the reference");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
