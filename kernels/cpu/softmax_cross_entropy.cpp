#include "kernels/softmax_cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/partition.h"
#include "kernels/cpu/require.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/device/cpu/submit.h"

namespace tessera::cpu {
namespace {

// cap * tanh(z / cap); a column that takes no part stays out.
inline float capped(float z, float cap) {
  const float value = cap * tanh_f32(z / cap);
  return z == -HUGE_VALF ? z : value;
}

float row_max(const float* z, Index vocab) {
  float largest = -HUGE_VALF;
#pragma omp simd reduction(max : largest)
  for (Index v = 0; v < vocab; ++v) {
    largest = z[v] > largest ? z[v] : largest;
  }
  return largest;
}

// sum_v exp(value(v) - largest), in f64
template <typename Value>
double exponential_sum(Index vocab, float largest, Value value) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (Index v = 0; v < vocab; ++v) {
    sum += static_cast<double>(exp_f32(value(v) - largest));
  }
  return sum;
}

// The same, leaving the exponentials in z.
double keep_exponentials(float* z, Index vocab, float largest) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (Index v = 0; v < vocab; ++v) {
    const float e = exp_f32(z[v] - largest);
    z[v] = e;
    sum += static_cast<double>(e);
  }
  return sum;
}

template <typename Value>
double plain_sum(Index vocab, Value value) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (Index v = 0; v < vocab; ++v) {
    sum += static_cast<double>(value(v));
  }
  return sum;
}

struct Row {
  float* z;  // [ld] logits
  Index vocab;
  Index target;
  double weight;
  CrossEntropyTerms terms;
};

// What a row's gradient is made of, beside its exponentials.
struct RowStatistics {
  float largest;  // of z'
  double sum;     // sum_v exp(z'[v] - largest)
  double lse;
  double loss;
};

RowStatistics statistics_of(const Row& row, float largest, double target_logit, double sum,
                            double sum_of_logits) {
  const double s = row.terms.label_smoothing;
  const double lse = largest + std::log(sum);
  double loss = (1 - s) * (lse - target_logit) + row.terms.z_loss * lse * lse;
  if (s != 0) {
    loss += s * (lse - sum_of_logits / static_cast<double>(row.vocab));
  }
  return {.largest = largest, .sum = sum, .lse = lse, .loss = row.weight * loss};
}

// Loss only; the logits are not touched.
double loss_of(const Row& row, float raw_largest) {
  const float* z = row.z;
  const float cap = row.terms.soft_cap;
  const bool smooths = row.terms.label_smoothing != 0;
  if (cap == 0) {
    const auto plain = [z](Index v) { return z[v]; };
    return statistics_of(row, raw_largest, z[row.target],
                         exponential_sum(row.vocab, raw_largest, plain),
                         smooths ? plain_sum(row.vocab, plain) : 0)
        .loss;
  }
  const auto with_cap = [z, cap](Index v) { return capped(z[v], cap); };
  const float largest = capped(raw_largest, cap);
  return statistics_of(row, largest, with_cap(row.target),
                       exponential_sum(row.vocab, largest, with_cap),
                       smooths ? plain_sum(row.vocab, with_cap) : 0)
      .loss;
}

// dloss/dz' of the target column times `scale`, in f64: p - 1 loses digits where p is near 1.
double target_gradient(const Row& row, const RowStatistics& row_statistics, float exponential,
                       double scale) {
  const double s = row.terms.label_smoothing;
  const double p = exponential / row_statistics.sum;
  return scale * row.weight *
         ((1 + 2 * row.terms.z_loss * row_statistics.lse) * p - (1 - s) -
          s / static_cast<double>(row.vocab));
}

// Loss, and the gradient over the logits.
double loss_and_gradient(const Row& row, float raw_largest, double scale) {
  float* z = row.z;
  const Index vocab = row.vocab;
  const float cap = row.terms.soft_cap;
  const double s = row.terms.label_smoothing;
  const auto shift = static_cast<float>(scale * row.weight * s / static_cast<double>(vocab));
  const auto factor_of = [&row, scale](const RowStatistics& of) {
    return static_cast<float>(scale * row.weight * (1 + 2 * row.terms.z_loss * of.lse) / of.sum);
  };
  const auto value = [z](Index v) { return z[v]; };
  if (cap == 0) {
    const double target_logit = z[row.target];
    const double sum_of_logits = s != 0 ? plain_sum(vocab, value) : 0;
    const double sum = keep_exponentials(z, vocab, raw_largest);
    const RowStatistics of = statistics_of(row, raw_largest, target_logit, sum, sum_of_logits);
    const auto at_target = static_cast<float>(target_gradient(row, of, z[row.target], scale));
    const float factor = factor_of(of);
#pragma omp simd
    for (Index v = 0; v < vocab; ++v) {
      z[v] = z[v] * factor - shift;
    }
    z[row.target] = at_target;
    return of.loss;
  }
#pragma omp simd
  for (Index v = 0; v < vocab; ++v) {
    z[v] = capped(z[v], cap);
  }
  const float largest = capped(raw_largest, cap);
  const double target_logit = z[row.target];
  const RowStatistics of =
      statistics_of(row, largest, target_logit, exponential_sum(vocab, largest, value),
                    s != 0 ? plain_sum(vocab, value) : 0);
  const auto target_exponential = exp_f32(z[row.target] - largest);
  const double target_ratio = target_logit / cap;
  const auto at_target = static_cast<float>(target_gradient(row, of, target_exponential, scale) *
                                            (1 - target_ratio * target_ratio));
  const float factor = factor_of(of);
#pragma omp simd
  for (Index v = 0; v < vocab; ++v) {
    const float ratio = z[v] / cap;
    const float gradient = (exp_f32(z[v] - largest) * factor - shift) * (1.0F - ratio * ratio);
    z[v] = z[v] == -HUGE_VALF ? 0.0F : gradient;
  }
  z[row.target] = at_target;
  return of.loss;
}

bool is_first_largest(const float* z, Index target, float largest) {
  return z[target] == largest && std::find(z, z + target, largest) == z + target;
}

void require_targets(const SoftmaxCrossEntropyArgs& args) {
  const auto* targets = data_as<std::int32_t>(args.targets);
  for (Index n = 0; n < args.targets.count(); ++n) {
    const std::int32_t target = targets[n];
    if (target != args.ignore_target && (target < 0 || target >= args.vocab)) {
      throw ContractError("target " + std::to_string(target) + " of row " + std::to_string(n) +
                              " is outside the vocabulary of " + std::to_string(args.vocab),
                          TESSERA_HERE);
    }
  }
}

// What a row gives beside its gradient.
struct RowResult {
  float loss;
  bool is_correct;
};

// Row n, that is not ignored; `scale` is not used where the logits are left alone.
RowResult run_row(const SoftmaxCrossEntropyArgs& args, Index n, double scale) {
  const auto* weights = static_cast<const float*>(args.weights.data);
  const Row row = {.z = data_as<float>(args.logits) + n * args.ld,
                   .vocab = args.vocab,
                   .target = data_as<std::int32_t>(args.targets)[n],
                   .weight = weights == nullptr ? 1.0 : static_cast<double>(weights[n]),
                   .terms = args.terms};
  const float largest = row_max(row.z, row.vocab);
  const bool is_correct =
      args.correct.data != nullptr && is_first_largest(row.z, row.target, largest);
  if (args.gradient == LogitsGradient::leave) {
    return {.loss = static_cast<float>(loss_of(row, largest)), .is_correct = is_correct};
  }
  const double loss = loss_and_gradient(row, largest, scale);
  std::fill(row.z + row.vocab, row.z + args.ld, 0.0F);
  return {.loss = static_cast<float>(loss), .is_correct = is_correct};
}

void run(const SoftmaxCrossEntropyArgs& args) {
  const Index rows = args.targets.count();
  const auto* targets = data_as<std::int32_t>(args.targets);
  auto* logits = data_as<float>(args.logits);
  auto* loss = data_as<float>(args.loss);
  auto* correct = static_cast<std::uint8_t*>(args.correct.data);
  const bool writes = args.gradient == LogitsGradient::write;
  const double scale = writes ? static_cast<double>(*data_as<float>(args.scale)) : 0;
  require_targets(args);
#pragma omp parallel for schedule(static) if (rows * args.vocab > kParallelElements)
  for (Index n = 0; n < rows; ++n) {
    RowResult result = {.loss = 0, .is_correct = false};
    if (targets[n] != args.ignore_target) {
      result = run_row(args, n, scale);
    } else if (writes) {
      std::fill_n(logits + n * args.ld, args.ld, 0.0F);
    }
    loss[n] = result.loss;
    if (correct != nullptr) {
      correct[n] = result.is_correct ? 1 : 0;
    }
  }
}

}  // namespace

void softmax_cross_entropy(const SoftmaxCrossEntropyArgs& args, Stream& stream) {
  const Index rows = args.targets.count();
  TESSERA_REQUIRE(args.vocab >= 1 && args.ld >= args.vocab, "1 <= V <= ld");
  TESSERA_REQUIRE(args.terms.soft_cap >= 0, "soft_cap is 0 for none, or above 0");
  require_room(args.logits, DType::f32, rows * args.ld, "logits");
  require_tensor(args.targets, DType::i32, rows, "targets");
  require_tensor(args.loss, DType::f32, rows, "loss");
  if (args.weights.data != nullptr) {
    require_tensor(args.weights, DType::f32, rows, "weights");
  }
  if (args.correct.data != nullptr) {
    require_tensor(args.correct, DType::u8, rows, "correct");
  }
  if (args.gradient == LogitsGradient::write) {
    require_tensor(args.scale, DType::f32, 1, "scale");
  }
  submit(stream, [args] { run(args); });
}

}  // namespace tessera::cpu
