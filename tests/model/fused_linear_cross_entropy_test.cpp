// The output layer and the loss in one, against f64 on the CPU.
#include "model/fused_linear_cross_entropy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/base/error.h"
#include "kernels/device/device_backend.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kScale = 0.125;
constexpr std::int32_t kIgnore = -100;
constexpr Index kWidth = 8;

// Everything that one call is given. Sizes follow from the vectors.
struct Case {
  Index vocab;
  Index chunk_rows;
  std::vector<double> hidden;   // [N, C]
  std::vector<double> weight;   // [V, C]
  std::vector<double> bias;     // [V] or empty
  std::vector<double> targets;  // [N]
  std::vector<double> weights;  // [N] or empty
  LossOptions options;
  bool exact_logits;  // every logit is a number of the type: products round nothing

  [[nodiscard]] Index tokens() const { return static_cast<Index>(targets.size()); }
};

// A result in f64 and what an element may differ from it.
struct Expected {
  explicit Expected(Index count)
      : values(static_cast<std::size_t>(count)), bounds(static_cast<std::size_t>(count)) {}
  void add(Index at, double value, double bound) {
    values[static_cast<std::size_t>(at)] += value;
    bounds[static_cast<std::size_t>(at)] += bound;
  }
  // The accumulation's own roundings and the last one.
  void finish(const std::vector<double>& terms, double additions, DType dtype) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      bounds[i] += additions * unit_roundoff(DType::f32) * terms[i] +
                   1.01 * unit_roundoff(dtype) * std::abs(values[i]) + 1e-30;
    }
  }
  std::vector<double> values;
  std::vector<double> bounds;
};

struct AllExpected {
  Expected loss;
  Expected d_hidden;
  Expected d_weight;
  Expected d_bias;
  std::vector<double> correct;
  bool knows_correct = true;  // no two logits so near that rounding may change their order
};

struct Logit {
  double value;  // z'
  double error;
  double derivative;  // dz'/dz
};

std::vector<Logit> logits_of_row(const Case& c, Index n, DType dtype) {
  const auto cap = static_cast<double>(c.options.terms.soft_cap);
  std::vector<Logit> row;
  for (Index v = 0; v < c.vocab; ++v) {
    double z = c.bias.empty() ? 0 : c.bias[static_cast<std::size_t>(v)];
    double terms = std::abs(z);
    for (Index k = 0; k < kWidth; ++k) {
      const double term = c.hidden[static_cast<std::size_t>(n * kWidth + k)] *
                          c.weight[static_cast<std::size_t>(v * kWidth + k)];
      z += term;
      terms += std::abs(term);
    }
    // a product is rounded before a bias is added to it, and after: twice at most
    double error = c.exact_logits || std::isinf(z) ? 0
                                                   : 2.02 * unit_roundoff(dtype) * terms +
                                                         16 * unit_roundoff(DType::f32) * terms;
    double derivative = 1;
    if (cap != 0 && !std::isinf(z)) {
      const double ratio = std::tanh(z / cap);
      z = cap * ratio;
      derivative = 1 - ratio * ratio;
      error += 8 * unit_roundoff(DType::f32) * cap;
    }
    row.push_back({z, error, derivative});
  }
  return row;
}

AllExpected reference(const Case& c, DType dtype) {
  const Index tokens = c.tokens();
  AllExpected all{Expected(tokens),
                  Expected(tokens * kWidth),
                  Expected(c.vocab * kWidth),
                  Expected(c.bias.empty() ? 0 : c.vocab),
                  {}};
  std::vector<double> hidden_terms(all.d_hidden.values.size());
  std::vector<double> weight_terms(all.d_weight.values.size());
  std::vector<double> bias_terms(all.d_bias.values.size());
  const double unit = unit_roundoff(DType::f32);
  const auto vocab = static_cast<double>(c.vocab);
  const auto s = static_cast<double>(c.options.terms.label_smoothing);
  const auto z_loss = static_cast<double>(c.options.terms.z_loss);
  const auto cap = static_cast<double>(c.options.terms.soft_cap);
  for (Index n = 0; n < tokens; ++n) {
    const auto target = static_cast<std::int32_t>(c.targets[static_cast<std::size_t>(n)]);
    if (target == c.options.ignore_target) {
      all.correct.push_back(0);
      continue;
    }
    const std::vector<Logit> row = logits_of_row(c, n, dtype);
    const double weight = c.weights.empty() ? 1 : c.weights[static_cast<std::size_t>(n)];
    const Logit at_target = row[static_cast<std::size_t>(target)];
    double largest = -kInfinity;
    double error = 0;
    for (const Logit& z : row) {
      largest = std::max(largest, z.value);
      error = std::max(error, z.error);
    }
    double sum = 0;
    double mean = 0;
    double mean_terms = 0;
    for (const Logit& z : row) {
      sum += std::exp(z.value - largest);
      mean += s == 0 ? 0 : z.value / vocab;
      mean_terms += s == 0 ? 0 : std::abs(z.value) / vocab;
    }
    const double lse = largest + std::log(sum);
    const double additions = vocab / 128 + 40;
    const double lse_error = error + unit * (additions + 4 * std::abs(lse));
    all.loss.add(n,
                 weight * ((1 - s) * (lse - at_target.value) + (s == 0 ? 0 : s * (lse - mean)) +
                           z_loss * lse * lse),
                 weight * ((1 + 2 * z_loss * std::abs(lse)) * lse_error + error +
                           4 * unit * (std::abs(at_target.value) + std::abs(lse) + mean_terms) +
                           additions * unit * mean_terms + z_loss * lse_error * lse_error));
    const auto first_largest = std::max_element(
        row.begin(), row.end(), [](const Logit& a, const Logit& b) { return a.value < b.value; });
    all.correct.push_back(first_largest - row.begin() == target ? 1 : 0);
    for (Index v = 0; v < c.vocab; ++v) {
      const Logit& z = row[static_cast<std::size_t>(v)];
      if (z.value == -kInfinity) {
        continue;
      }
      all.knows_correct =
          all.knows_correct && (c.exact_logits || v == first_largest - row.begin() ||
                                first_largest->value - z.value > 2 * error);
      const double p = std::exp(z.value - lse);
      const double share = 1 + 2 * z_loss * lse;
      const double inner = share * p - (v == target ? 1 - s : 0) - s / vocab;
      // e^x - 1 < 2x for the x that come
      const double p_error = p * (2 * (z.error + lse_error) + unit * (8 + std::abs(z.value - lse)));
      const double derivative_error =
          cap == 0 ? 0 : 2 * (z.error / cap + 8 * unit);  // of 1 - (z'/cap)^2
      const double g = kScale * weight * inner * z.derivative;
      double g_error = kScale * weight *
                       ((std::abs(share) * p_error + 2 * z_loss * lse_error * p +
                         8 * unit * (std::abs(share) * p + 1)) *
                            (z.derivative + derivative_error) +
                        std::abs(inner) * derivative_error);
      g_error += unit_roundoff(dtype) * (std::abs(g) + g_error) + 1e-37;
      for (Index k = 0; k < kWidth; ++k) {
        const double h = c.hidden[static_cast<std::size_t>(n * kWidth + k)];
        const double w = c.weight[static_cast<std::size_t>(v * kWidth + k)];
        all.d_hidden.add(n * kWidth + k, g * w, g_error * std::abs(w));
        all.d_weight.add(v * kWidth + k, g * h, g_error * std::abs(h));
        hidden_terms[static_cast<std::size_t>(n * kWidth + k)] += std::abs(g * w);
        weight_terms[static_cast<std::size_t>(v * kWidth + k)] += std::abs(g * h);
      }
      if (!c.bias.empty()) {
        all.d_bias.add(v, g, g_error);
        bias_terms[static_cast<std::size_t>(v)] += std::abs(g);
      }
    }
  }
  const double additions_of_rows = static_cast<double>(tokens) + 8;
  all.d_hidden.finish(hidden_terms, std::sqrt(vocab) * 4 + 64, dtype);
  all.d_weight.finish(weight_terms, additions_of_rows, DType::f32);
  all.d_bias.finish(bias_terms, additions_of_rows, DType::f32);
  return all;
}

// The case on the device, with every output poisoned first.
class Run {
 public:
  Run(TestBench& bench, DType dtype, Case& c)
      : bench_(bench),
        tokens_(c.tokens()),
        hidden_(bench.of(c.hidden, dtype, {tokens_, kWidth})),
        weight_(bench.of(c.weight, dtype, {c.vocab, kWidth})),
        bias_(bench.of(c.bias, dtype, {static_cast<Index>(c.bias.size())})),
        targets_(bench.of(c.targets, DType::i32, {tokens_})),
        weights_(bench.of(c.weights, DType::f32, {static_cast<Index>(c.weights.size())})),
        scale_(bench.of({kScale}, DType::f32, {1})),
        loss_(bench.poisoned(DType::f32, {tokens_})),
        correct_(bench.poisoned(DType::u8, {tokens_})),
        d_hidden_(bench.poisoned(dtype, {tokens_, kWidth})),
        d_weight_(bench.poisoned(DType::f32, {c.vocab, kWidth})),
        d_bias_(bench.poisoned(DType::f32, {static_cast<Index>(c.bias.size())})),
        workspace_(bench.poisoned(DType::u8,
                                  {static_cast<Index>(gemm_workspace_bytes(bench.device().kind))})),
        arena_(bench.device(), ArenaMode::allocate),
        fused_(bench.kernels(), arena_, dtype, c.vocab, kWidth, c.chunk_rows, c.options) {
    c.hidden = hidden_.values;  // as rounded
    c.weight = weight_.values;
    c.bias = bias_.values;
    c.weights = weights_.values;
  }

  void forward() { fused_.forward(inputs(), workspace_.view(), bench_.stream()); }
  void forward_backward() {
    fused_.forward_backward(
        inputs(),
        {.d_hidden = d_hidden_.view(), .d_weight = d_weight_.view(), .d_bias = d_bias_.optional()},
        workspace_.view(), bench_.stream());
  }

  [[nodiscard]] std::vector<double> loss() { return bench_.read(loss_.view()); }
  [[nodiscard]] std::vector<double> correct() { return bench_.read(correct_.view()); }
  [[nodiscard]] std::vector<double> d_hidden() { return bench_.read(d_hidden_.view()); }
  [[nodiscard]] std::vector<double> d_weight() { return bench_.read(d_weight_.view()); }
  [[nodiscard]] std::vector<double> d_bias() { return bench_.read(d_bias_.view()); }

 private:
  [[nodiscard]] LinearCrossEntropyInputs inputs() {
    return {.hidden = hidden_.view(),
            .weight = weight_.view(),
            .bias = bias_.optional(),
            .targets = targets_.view(),
            .weights = weights_.optional(),
            .scale = scale_.view(),
            .loss = loss_.view(),
            .correct = correct_.view()};
  }

  TestBench& bench_;
  Index tokens_;
  TestTensor hidden_;
  TestTensor weight_;
  TestTensor bias_;
  TestTensor targets_;
  TestTensor weights_;
  TestTensor scale_;
  TestTensor loss_;
  TestTensor correct_;
  TestTensor d_hidden_;
  TestTensor d_weight_;
  TestTensor d_bias_;
  TestTensor workspace_;
  Arena arena_;
  FusedLinearCrossEntropy fused_;
};

// Evaluation first, which must touch no gradient and knows neither label smoothing nor z-loss, then
// everything.
void check_case(TestBench& bench, DType dtype, Case c) {
  Run run(bench, dtype, c);
  const AllExpected expected = reference(c, dtype);
  Case without_terms = c;
  without_terms.options.terms = {.soft_cap = c.options.terms.soft_cap};
  const Expected plain = reference(without_terms, dtype).loss;
  run.forward();
  check_close(run.loss(), plain.values, plain.bounds, "plain loss");
  for (const double left : run.d_weight()) {
    BOOST_REQUIRE(std::isnan(left));
  }
  run.forward_backward();
  check_close(run.loss(), expected.loss.values, expected.loss.bounds, "loss");
  if (expected.knows_correct) {
    check_equal(run.correct(), expected.correct, "correct");
  }
  check_close(run.d_hidden(), expected.d_hidden.values, expected.d_hidden.bounds, "d_hidden");
  check_close(run.d_weight(), expected.d_weight.values, expected.d_weight.bounds, "d_weight");
  if (!c.bias.empty()) {
    check_close(run.d_bias(), expected.d_bias.values, expected.d_bias.bounds, "d_bias");
  }
}

Case random_case(TestBench& bench, Index tokens, Index vocab, Index chunk_rows) {
  Case c{vocab,
         chunk_rows,
         bench.normal(DType::f32, {tokens, kWidth}, 1).values,
         bench.normal(DType::f32, {vocab, kWidth}, 1).values,
         {},
         bench.integers({tokens}, vocab).values,
         {},
         {},
         false};
  c.targets.front() = 0;
  c.targets.back() = static_cast<double>(vocab - 1);
  return c;
}

void add_bias(TestBench& bench, Case& c) {
  c.bias = bench.normal(DType::f32, {c.vocab}, 1).values;
  c.options.bias = OutputBias::present;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(fused_linear_cross_entropy)

BOOST_AUTO_TEST_CASE(every_vocabulary_equals_f64) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const Index vocab : {1, 2, 63, 64, 65, 50257, 151936, 262147}) {
      BOOST_TEST_CONTEXT("vocabulary " << vocab) {
        check_case(bench, dtype, random_case(bench, 5, vocab, 2));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(any_number_of_tokens_and_any_chunk_equal_f64) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const Index tokens : {1, 2, 63, 130}) {
      for (const Index chunk_rows : {1, 64, 128, 256}) {
        BOOST_TEST_CONTEXT("tokens " << tokens << " chunk " << chunk_rows) {
          check_case(bench, dtype, random_case(bench, tokens, 65, chunk_rows));
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(each_optional_term_equals_f64_with_and_without_bias) {
  TestBench bench(test_device());
  const std::array<CrossEntropyTerms, 5> kinds = {{
      {},
      {.label_smoothing = 0.1F},
      {.z_loss = 1e-2F},
      {.soft_cap = 5},
      {.label_smoothing = 0.2F, .z_loss = 1e-3F, .soft_cap = 10},
  }};
  for (const DType dtype : bench.float_types()) {
    for (const CrossEntropyTerms& terms : kinds) {
      for (const bool biased : {false, true}) {
        for (const bool weighted : {false, true}) {
          BOOST_TEST_CONTEXT("smoothing " << terms.label_smoothing << " z " << terms.z_loss
                                          << " cap " << terms.soft_cap << " bias " << biased
                                          << " weights " << weighted) {
            Case c = random_case(bench, 7, 301, 3);
            c.options.terms = terms;
            if (biased) {
              add_bias(bench, c);
            }
            if (weighted) {
              c.weights = {0.5, 2, 0, 1.25, 1, 1, 3};
            }
            check_case(bench, dtype, c);
          }
        }
      }
    }
  }
}

// One chunk, several of equal size, and several of which the last is short.
BOOST_AUTO_TEST_CASE(bias_cap_and_weights_equal_f64_in_three_shapes) {
  struct Sizes {
    Index tokens;
    Index vocab;
    Index chunk_rows;
  };
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const Sizes& sizes : {Sizes{9, 130, 16}, Sizes{192, 1031, 64}, Sizes{70, 50257, 32}}) {
      BOOST_TEST_CONTEXT("tokens " << sizes.tokens << " vocabulary " << sizes.vocab) {
        Case c = random_case(bench, sizes.tokens, sizes.vocab, sizes.chunk_rows);
        c.options.terms.soft_cap = 4;
        add_bias(bench, c);
        c.weights = bench.normal(DType::f32, {sizes.tokens}, 1).values;
        std::transform(c.weights.begin(), c.weights.end(), c.weights.begin(),
                       [](double weight) { return std::abs(weight); });
        check_case(bench, dtype, c);
      }
    }
  }
}

// Logits of +-9984, and small ones, none of which a product rounds even in bf16.
BOOST_AUTO_TEST_CASE(logits_of_ten_thousand_are_safe) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const float cap : {0.0F, 30.0F}) {
      Case c = random_case(bench, 6, 257, 4);
      c.options.terms.soft_cap = cap;
      c.exact_logits = true;
      std::fill(c.hidden.begin(), c.hidden.end(), 0.0);
      for (Index n = 0; n < 6; ++n) {
        c.hidden[static_cast<std::size_t>(n * kWidth)] = n % 2 == 0 ? 128 : -128;
      }
      for (Index v = 0; v < c.vocab; ++v) {
        c.weight[static_cast<std::size_t>(v * kWidth)] =
            v % 3 == 0 ? 78 : (v % 3 == 1 ? -78 : static_cast<double>(v % 5) / 128);
      }
      check_case(bench, dtype, c);
    }
  }
}

BOOST_AUTO_TEST_CASE(columns_of_minus_infinity_take_no_part) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const float cap : {0.0F, 5.0F}) {
      Case c = random_case(bench, 5, 130, 2);
      add_bias(bench, c);
      c.options.terms.soft_cap = cap;
      for (Index v = 1; v < c.vocab; v += 3) {
        if (std::find(c.targets.begin(), c.targets.end(), static_cast<double>(v)) ==
            c.targets.end()) {
          c.bias[static_cast<std::size_t>(v)] = -kInfinity;
        }
      }
      check_case(bench, dtype, c);
    }
  }
}

BOOST_AUTO_TEST_CASE(ignored_targets_leave_zeros_also_where_the_value_lies_in_the_vocabulary) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const std::int32_t ignore : {kIgnore, 3}) {
      Case c = random_case(bench, 7, 65, 3);
      add_bias(bench, c);
      c.options.ignore_target = ignore;
      c.targets = {0, static_cast<double>(ignore), 64, static_cast<double>(ignore), 5,
                   2, static_cast<double>(ignore)};
      check_case(bench, dtype, c);
      c.targets.assign(7, static_cast<double>(ignore));  // the bounds are then below 1e-29
      check_case(bench, dtype, c);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_bias_that_the_options_do_not_name_is_refused) {
  TestBench bench(test_device());
  Case c = random_case(bench, 3, 65, 3);
  add_bias(bench, c);
  c.options.bias = OutputBias::none;
  Run run(bench, DType::f32, c);
  BOOST_CHECK_THROW(run.forward(), ContractError);
}

// 9000 rows of 262,152 logits in one chunk; all targets but a few at either end are ignored.
BOOST_AUTO_TEST_CASE(more_than_two_to_the_31_logits_equal_f64,
                     *boost::unit_test::enable_if<TESSERA_TEST_DEVICE == DeviceKind::cuda>()) {
  constexpr Index kTokens = 9000;
  constexpr std::size_t kBytes = std::size_t{6} << 30U;
  TestBench bench(test_device());
  if (device_info(test_device()).free_bytes < kBytes) {
    BOOST_TEST_MESSAGE("not run: the device has no room for it");
    return;
  }
  Case c = random_case(bench, kTokens, 262147, kTokens);
  for (std::size_t n = 2; n + 3 < kTokens; ++n) {
    c.targets[n] = kIgnore;
  }
  check_case(bench, DType::bf16, c);
}

BOOST_AUTO_TEST_CASE(chunks_follow_the_budget_and_the_batch) {
  constexpr Index kVocab = 151936;
  const std::size_t row = 2 * static_cast<std::size_t>(kVocab);
  BOOST_CHECK_EQUAL(chunk_rows_for(65536, kVocab, DType::bf16, 2100 * row), 2048);
  BOOST_CHECK_EQUAL(chunk_rows_for(131072, kVocab, DType::bf16, 2100 * row), 2048);
  BOOST_CHECK_EQUAL(chunk_rows_for(2100, kVocab, DType::bf16, 2100 * row), 2100);
  BOOST_CHECK_EQUAL(chunk_rows_for(65536, kVocab, DType::bf16, 1000 * row), 960);
  BOOST_CHECK_EQUAL(chunk_rows_for(65536, kVocab, DType::bf16, 63 * row), 63);
  BOOST_CHECK_EQUAL(chunk_rows_for(65536, kVocab, DType::bf16, 1), 1);
  BOOST_CHECK_EQUAL(chunk_rows_for(1, kVocab, DType::bf16, 2100 * row), 1);
  BOOST_CHECK_EQUAL(logits_stride(50257, DType::bf16), 50264);
  BOOST_CHECK_EQUAL(logits_stride(50257, DType::f32), 50260);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
