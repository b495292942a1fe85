// The gradient of the whole model, as it arrives in the shard, against finite differences in f64 of
// a loss that shares nothing with the model's code but the formulas.
#define BOOST_TEST_MODULE finite_differences
#include <algorithm>
#include <cmath>
#include <functional>

#include <boost/test/unit_test.hpp>

#include "kernels/base/random.h"
#include "tests/support/run/alone.h"
#include "tests/support/run/reference_model.h"
#include "tests/support/run/small_run.h"

namespace tessera::test {
namespace {

constexpr std::uint64_t kSeedOfWeights = 11;
constexpr std::uint64_t kSeedOfDirections = 12;
constexpr int kDirections = 3;
// The error of a central difference is h^2 L''' / 6 and 1e-16 / h.
constexpr double kStep = 1e-5;
// f32's rounding, 6e-8, over the some hundred operations behind a gradient's element.
constexpr double kBound = 1e-5;

double uniform(std::uint64_t seed, std::uint64_t stream, Index i) {  // in [-1, 1)
  return static_cast<double>(philox(seed, stream, static_cast<std::uint64_t>(i))[0]) / 0x1p31 - 1;
}

// Large enough that every nonlinearity is felt: attention is uneven, gates are not linear.
ReferenceWeights make_weights(const ParamLayout& layout) {
  ReferenceWeights weights;
  for (UnitId id = 0; id < layout.unit_count(); ++id) {
    const ParamUnit& unit = layout.unit(id);
    std::vector<double>& values = weights.emplace_back(static_cast<std::size_t>(unit.count));
    for (const ParamTensor& tensor : unit.tensors) {
      const bool gain = tensor.name.ends_with("norm");
      for (Index i = tensor.offset; i < tensor.offset + tensor.count(); ++i) {
        const double u = uniform(kSeedOfWeights, static_cast<std::uint64_t>(id), i);
        values[static_cast<std::size_t>(i)] = static_cast<float>(gain ? 1 + 0.3 * u : 0.4 * u);
      }
    }
  }
  return weights;
}

// The gradient of the mean loss, one [count] a unit, from a step of the trainer.
struct Step {
  EvalReport evaluation;  // before it, over the same batch
  double loss = 0;
  std::vector<std::vector<float>> gradients;
};
Step take_step(SmallRunOptions options, const ReferenceWeights& weights) {
  Step step;
  options.steps = 1;
  options.before = [&](TrainingRun& run) {
    run.shard().initialize([&](UnitId unit, Index begin, std::span<float> values) {
      const std::vector<double>& all = weights[static_cast<std::size_t>(unit)];
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::size_t at = static_cast<std::size_t>(begin) + i;
        values[i] = at < all.size() ? static_cast<float>(all[at]) : 0.0F;
      }
    });
    run.trainer().gather_parameters();
    MemoryBatches batches({.tokens = options.tokens,
                           .targets = options.targets,
                           .documents = options.documents,
                           .length = options.settings.scratch.batch.length,
                           .micro_batch = options.settings.trainer.micro_batch,
                           .global_batch = options.settings.trainer.global_batch});
    batches.prefetch(0);
    batches.take();
    step.evaluation = run.trainer().evaluate(
        options.settings.trainer.global_batch / options.settings.trainer.micro_batch,
        [&batches](Index number) { return batches.batch(number); });
  };
  options.after_step = [&](TrainingRun& run, const StepReport& report) {
    step.loss = report.loss;
    for (UnitId unit = 0; unit < run.layout().unit_count(); ++unit) {
      const TensorView grad = run.shard().grad(unit);
      const auto* values = static_cast<const float*>(grad.data);
      step.gradients.emplace_back(values, values + run.layout().unit(unit).count);
    }
  };
  Alone comm;
  (void)run_small(options, comm);
  return step;
}

// The loss over parts of these lengths, which see nothing of each other.
ReferenceLoss loss_of_parts(
    const std::vector<Index>& lengths, std::span<const std::int32_t> tokens,
    std::span<const std::int32_t> targets,
    const std::function<ReferenceLoss(std::span<const std::int32_t>, std::span<const std::int32_t>,
                                      Index)>& loss) {
  ReferenceLoss all = {};
  for (const Index length : lengths) {
    const auto count = static_cast<std::size_t>(length);
    const std::span<const std::int32_t> of_part = targets.first(count);
    if (std::any_of(of_part.begin(), of_part.end(),
                    [](std::int32_t target) { return target != kIgnoreTarget; })) {
      const ReferenceLoss part = loss(tokens.first(count), of_part, length);
      const auto weight = static_cast<double>(part.targets);
      all.objective += weight * part.objective;
      all.cross_entropy += weight * part.cross_entropy;
      all.correct += part.correct;
      all.targets += part.targets;
    }
    tokens = tokens.subspan(count);
    targets = targets.subspan(count);
  }
  all.objective /= static_cast<double>(all.targets);
  all.cross_entropy /= static_cast<double>(all.targets);
  return all;
}

// `documents`: as MemoryBatchesOptions'.
void check_model(const ModelConfig& config, const CrossEntropyTerms& terms = {},
                 const std::vector<std::vector<Index>>& documents = {}) {
  SmallRunOptions options = small_options();
  options.documents = documents;
  options.settings.scratch.attention.documents = !documents.empty();
  options.config = config;
  options.settings.scratch.loss.terms = terms;
  const TrainerOptions& trainer = options.settings.trainer;
  const Index length = options.settings.scratch.batch.length;
  const auto count = static_cast<std::size_t>(trainer.global_batch * length);
  const std::span<const std::int32_t> tokens = std::span(options.tokens).first(count);
  const std::span<const std::int32_t> targets = std::span(options.targets).first(count);
  const ParamLayout layout(config);
  ReferenceWeights weights = make_weights(layout);
  std::vector<Index> lengths(static_cast<std::size_t>(trainer.global_batch), length);
  if (!documents.empty()) {
    lengths.clear();
    for (Index sequence = 0; sequence < trainer.global_batch; ++sequence) {
      const std::vector<Index>& of_sequence = documents[static_cast<std::size_t>(sequence)];
      lengths.insert(lengths.end(), of_sequence.begin(), of_sequence.end());
    }
  }
  const auto reference = [&] {
    return loss_of_parts(lengths, tokens, targets,
                         [&](std::span<const std::int32_t> part,
                             std::span<const std::int32_t> part_targets, Index part_length) {
                           return reference_loss(config, layout, weights, part, part_targets,
                                                 part_length, terms);
                         });
  };
  const auto loss = [&] { return reference().objective; };
  const Step step = take_step(options, weights);
  const ReferenceLoss expected = reference();
  BOOST_CHECK_SMALL(step.loss / expected.objective - 1, 1e-6);
  BOOST_CHECK_SMALL(step.evaluation.loss.value() / expected.cross_entropy - 1, 1e-6);
  BOOST_CHECK_EQUAL(step.evaluation.correct, expected.correct);
  BOOST_CHECK_EQUAL(step.evaluation.targets, expected.targets);
  for (UnitId id = 0; id < layout.unit_count(); ++id) {
    std::vector<double>& of_unit = weights[static_cast<std::size_t>(id)];
    const std::vector<float>& gradient = step.gradients[static_cast<std::size_t>(id)];
    for (const ParamTensor& tensor : layout.unit(id).tensors) {
      const auto begin = static_cast<std::size_t>(tensor.offset);
      const auto end = begin + static_cast<std::size_t>(tensor.count());
      const std::vector<double> kept(of_unit.begin() + tensor.offset,
                                     of_unit.begin() + tensor.offset + tensor.count());
      for (int k = 0; k < kDirections; ++k) {
        double derivative = 0;
        double size = 0;
        std::vector<double> direction;
        for (std::size_t i = begin; i < end; ++i) {
          direction.push_back(uniform(kSeedOfDirections + static_cast<std::uint64_t>(k),
                                      static_cast<std::uint64_t>(id), static_cast<Index>(i)));
          derivative += direction.back() * static_cast<double>(gradient[i]);
          size += std::abs(direction.back() * static_cast<double>(gradient[i]));
        }
        const auto moved = [&](double by) {
          for (std::size_t i = begin; i < end; ++i) {
            of_unit[i] = kept[i - begin] + by * direction[i - begin];
          }
          const double value = loss();
          std::copy(kept.begin(), kept.end(), of_unit.begin() + tensor.offset);
          return value;
        };
        const double difference = (moved(kStep) - moved(-kStep)) / (2 * kStep);
        BOOST_CHECK_MESSAGE(
            std::abs(difference - derivative) <= kBound * size,
            tensor.name << ": " << derivative << " for " << difference << ", of terms " << size);
        BOOST_CHECK_GT(size, 0);
      }
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(gradient_of_the_whole_model)

BOOST_AUTO_TEST_CASE(qwen3_tied_and_untied) {
  check_model(small_config(true));
  check_model(small_config(false));
}

// Steps minimise, and report, the objective; evaluations, in the same run, the cross entropy.
BOOST_AUTO_TEST_CASE(label_smoothing_and_z_loss) {
  check_model(small_config(true), {.label_smoothing = 0.1F});
  check_model(small_config(true), {.z_loss = 1e-2F});
  check_model(small_config(false), {.label_smoothing = 0.2F, .z_loss = 1e-3F});
}

BOOST_AUTO_TEST_CASE(documents_that_see_nothing_of_each_other) {
  const std::vector<std::vector<Index>> kinds = {
      {16}, {1, 15}, {5, 5, 6}, std::vector<Index>(16, 1), {9, 7}};
  std::vector<std::vector<Index>> documents;
  for (std::size_t sequence = 0; sequence < 40; ++sequence) {
    documents.push_back(kinds[sequence % kinds.size()]);
  }
  check_model(small_config(true), {}, documents);
  ModelConfig config = small_config(false);
  config.sliding_window = 3;
  config.sliding_layers.assign(static_cast<std::size_t>(config.num_layers), false);
  config.sliding_layers.back() = true;
  check_model(config, {}, documents);
}

BOOST_AUTO_TEST_CASE(qwen2_with_biases_and_without_qk_norm) {
  ModelConfig config = small_config(true);
  config.model_type = "qwen2";
  config.qk_norm = false;
  config.attention_bias = true;
  check_model(config);
}

BOOST_AUTO_TEST_CASE(every_type_of_rope_scaling) {
  for (const RopeType type : {RopeType::linear, RopeType::dynamic, RopeType::yarn}) {
    ModelConfig config = small_config(false);
    config.max_position = 3;  // dynamic: the sequences are longer
    config.rope.type = type;
    config.rope.factor = 4;
    config.rope.original_max_position = 64;  // yarn: pairs on both sides of the ramp and on it
    BOOST_TEST_CONTEXT(rope_type_name(type)) {
      check_model(config);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_sliding_window_in_some_layers) {
  ModelConfig config = small_config(true);
  config.model_type = "qwen2";
  config.qk_norm = false;
  config.sliding_window = 3;
  config.sliding_layers.assign(static_cast<std::size_t>(config.num_layers), false);
  config.sliding_layers.back() = true;
  check_model(config);
}

BOOST_AUTO_TEST_CASE(llama_with_scaled_frequencies) {
  ModelConfig config = small_config(false);
  config.model_type = "llama";
  config.qk_norm = false;
  config.rope.type = RopeType::llama3;
  config.rope.factor = 8;
  config.rope.original_max_position = 32;  // so that some pairs are scaled, some not, some between
  check_model(config);
}

// Llama takes biases from its file; the MLP's alone; and Qwen3 puts the norm of q and k behind
// them.
BOOST_AUTO_TEST_CASE(biases_on_every_projection) {
  ModelConfig config = small_config(true);
  config.attention_bias = config.attention_out_bias = true;
  check_model(config);
  config.model_type = "llama";
  config.qk_norm = false;
  config.mlp_bias = true;
  check_model(config);
  config.attention_bias = config.attention_out_bias = false;
  check_model(config);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
