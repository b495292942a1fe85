// Adapters beside a frozen base: their gradients against finite differences in f64, and bit-identical
// steps on any number of ranks, for every page size, recompute level and place of the base.
#define BOOST_TEST_MODULE adapter_step
#include <array>
#include <cmath>

#include <boost/test/unit_test.hpp>

#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "kernels/device/device_backend.h"
#include "model/initialization.h"
#include "tests/support/compare.h"
#include "tests/support/run/check_bits.h"
#include "tests/support/run/reference_model.h"
#include "tests/support/test_bench.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {

struct DeviceIsPresent {
  DeviceIsPresent() { skip_without(TESSERA_TEST_DEVICE); }
};
BOOST_TEST_GLOBAL_FIXTURE(DeviceIsPresent);

constexpr std::size_t kSmallPage = std::size_t{12} << 10U;  // 1024 elements

AdapterConfig adapters_of(const char* targets, Index rank = 3) {
  return {.rank = rank,
          .alpha = 6,
          .rank_stabilized = false,
          .targets = parse_projections(targets, "--lora-targets"),
          .trains_embeddings = false};
}

SmallRunOptions options_here(const AdapterConfig& adapters, bool tied = true) {
  SmallRunOptions options = small_options(tied);
  options.device = own_device();
  options.settings.adapters = AdapterSettings{.config = adapters};
  return options;
}

SmallRunOptions options_here(const char* targets = "all", bool tied = true) {
  return options_here(adapters_of(targets), tied);
}

SmallRunOptions with_embeddings(bool tied) {
  AdapterConfig adapters = adapters_of("all");
  adapters.trains_embeddings = true;
  return options_here(adapters, tied);
}

std::unique_ptr<Communicator> all_ranks() {
  return make_communicator(session(), own_device());
}

// All of the base, as the model computes with it.
std::vector<float> base_of(TrainingRun& run) {
  std::vector<float> all;
  const ModelParams params = run.model_params();
  for (UnitId unit = 0; unit < run.model_layout().unit_count(); ++unit) {
    const ParamLease lease = params.base.acquire(unit, run.compute());
    const Index count = run.model_layout().unit(unit).count;
    if (lease.params().dtype != DType::f32) {
      return {};  // of a card: compared by the content hash
    }
    std::vector<float> values(static_cast<std::size_t>(count));
    copy_async(lease.params().slice(0, count), {values.data(), DType::f32, Shape{count}, Device{}},
               run.compute());
    run.compute().synchronize();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(adapter_step)

BOOST_AUTO_TEST_CASE(any_number_of_ranks_gives_the_bits_of_one) {
  const auto comm = all_ranks();
  for (const char* targets : {"all", "attention", "mlp", "q_proj,v_proj", "k_proj,up_proj"}) {
    const SmallRunOptions options = options_here(targets, targets[0] != 'm');
    const RunBits expected = alone(options);
    BOOST_CHECK(std::isfinite(expected.losses.back()));
    check_same(run_small(options, *comm), expected, targets);
  }
  for (const bool tied : {true, false}) {
    const SmallRunOptions options = with_embeddings(tied);
    check_same(run_small(options, *comm), alone(options), tied ? "tied" : "untied");
  }
}

BOOST_AUTO_TEST_CASE(pages_levels_and_places_of_the_base_change_no_bit) {
  const auto comm = all_ranks();
  const bool tied = comm->world_size() % 2 == 0;
  for (SmallRunOptions options : {options_here("all", tied), with_embeddings(tied)}) {
    options.config.num_layers = 5;  // more than the ring of a sharded base has places
    options.steps = 3;
    const RunBits expected = alone(options);
    const RunBits own = run_small(options, *comm);
    int turn = 0;
    for (const char* level : {"none", "attention", "mlp", "block", "block:2,mlp"}) {
      options.settings.scratch.recompute = parse_recompute(level, "--recompute");
      options.settings.paging = {
          .page_bytes = kSmallPage, .max_device_bytes = 0, .buffers = 3, .page_all = turn % 2 == 0};
      options.settings.trainer.batched_forward = turn % 3 == 2 ? 3 : 1;
      options.settings.host_grad_bytes = turn % 2 == 1 ? kAllGrads : 0;
      options.settings.zero = turn % 3 == 0 ? ZeroStage::two : ZeroStage::three;
      options.settings.params = turn % 3 == 1 ? ParamPlacement::host : ParamPlacement::device;
      ++turn;
      const RunBits bits = run_small(options, *comm);
      check_same(bits, expected, level);
      BOOST_CHECK(bits.state == own.state);
    }
  }
}

BOOST_AUTO_TEST_CASE(groups_other_optimizers_and_parameters_of_bf16_have_the_bits_of_one_rank) {
  const auto comm = all_ranks();
  SmallRunOptions options = options_here();
  options.settings.reduce_group = 2;
  check_same(run_small(options, *comm), alone(options), "groups of two");
  options = options_here();
  options.settings.optimizer.kind = OptimizerKind::sgd;
  check_same(run_small(options, *comm), alone(options), "sgd");
  options = options_here();
  options.settings.optimizer.adamw.moments = MomentType::bits8;
  check_same(run_small(options, *comm), alone(options), "moments of 8 bits");
  options = options_here();
  options.settings.scratch.precision =
      precision_of(own_device().kind == DeviceKind::cpu ? Precision::bf16_params : Precision::bf16);
  options.settings.masters = MasterStorage::packed;
  const RunBits expected = alone(options);
  BOOST_CHECK(!(expected == alone(options_here())));
  check_same(run_small(options, *comm), expected, "packed masters");
  options.settings.zero = ZeroStage::three;
  check_same(run_small(options, *comm), expected, "packed masters beside a base in shards");
}

BOOST_AUTO_TEST_CASE(a_poisoned_workspace_leaves_no_trace) {
  const auto comm = all_ranks();
  for (SmallRunOptions options : {options_here("q_proj,down_proj"), with_embeddings(false)}) {
    const RunBits expected = alone(options);
    options.settings.on_acquire = SlotContents::poison;
    options.after_step = [](TrainingRun&, const StepReport& report) {
      BOOST_CHECK(!report.skipped);
    };
    check_same(run_small(options, *comm), expected, "poisoned");
  }
}

BOOST_AUTO_TEST_CASE(the_base_stays_and_has_neither_gradients_nor_state) {
  const auto comm = all_ranks();
  SmallRunOptions options = options_here();
  options.config.vocab_size = 2000;  // the base is much larger than what is trained
  std::vector<float> before;
  std::uint64_t hash = 0;
  const AdapterLayout layout(options.config, options.settings.adapters->config);
  options.before = [&](TrainingRun& run) {
    before = base_of(run);
    hash = run.base_hash();
    BOOST_CHECK_EQUAL(run.layout().total_count(), layout.params().total_count());
    Index padded = 0;
    for (UnitId unit = 0; unit < run.layout().unit_count(); ++unit) {
      padded += run.shard().range(unit).shard_size();
    }
    BOOST_CHECK_EQUAL(run.shard().state_bytes(), run.shard().state_layout().bytes(padded));
    BOOST_CHECK_EQUAL(run.grads().slots().embedding_count(), 0);
    BOOST_CHECK_EQUAL(run.grads().slots().slot_count(),
                      padded_count(layout.params().unit(0).count, comm->world_size()));
  };
  options.after_step = [&](TrainingRun& run, const StepReport&) {
    BOOST_CHECK(base_of(run) == before);
  };
  (void)run_small(options, *comm);
  Alone one;
  options.before = [&](TrainingRun& run) { BOOST_CHECK_EQUAL(run.base_hash(), hash); };
  options.after_step = {};
  (void)run_small(options, one);
  const ParamLayout model(options.config);
  const auto values = [&](UnitId unit, Index begin, std::span<float> into) {
    initial_values(options.config, model, unit, options.settings.seed, begin, into);
  };
  BOOST_CHECK_EQUAL(content_hash(model, values, 3), hash);
  const auto other = [&](UnitId unit, Index begin, std::span<float> into) {
    values(unit, begin, into);
    into.front() = unit == 1 && begin == 0 ? 0.5F : into.front();
  };
  BOOST_CHECK_NE(content_hash(model, other, 1), hash);
}

BOOST_AUTO_TEST_CASE(the_first_step_is_the_bases) {
  SmallRunOptions options = options_here();
  const RunBits adapted = alone(options);
  options.settings.adapters.reset();
  BOOST_CHECK_EQUAL(alone(options).losses.front(), adapted.losses.front());
}

BOOST_AUTO_TEST_CASE(adapters_begin_as_peft_has_them_by_element_number) {
  const ModelConfig config = small_config();
  const AdapterLayout layout(config, adapters_of("all", 8));
  for (const AdapterInit init : {AdapterInit::kaiming, AdapterInit::gaussian}) {
    for (UnitId unit = 0; unit < layout.params().unit_count(); ++unit) {
      const ParamUnit& block = layout.params().unit(unit);
      std::vector<float> all(static_cast<std::size_t>(block.count));
      initial_adapters(layout, unit, init, kSeed, 0, all);
      std::vector<float> part(777);
      initial_adapters(layout, unit, init, kSeed, 100, part);
      BOOST_CHECK(std::equal(part.begin(), part.end(), all.begin() + 100));
      for (const ParamTensor& tensor : block.tensors) {
        double squares = 0;
        double largest = 0;
        for (Index i = tensor.offset; i < tensor.offset + tensor.count(); ++i) {
          const double value = all[static_cast<std::size_t>(i)];
          squares += value * value;
          largest = std::max(largest, std::abs(value));
        }
        const double deviation = std::sqrt(squares / static_cast<double>(tensor.count()));
        const double bound = 1 / std::sqrt(static_cast<double>(tensor.shape[1]));
        if (tensor.name.ends_with("lora_b")) {
          BOOST_CHECK_EQUAL(largest, 0);
        } else if (init == AdapterInit::kaiming) {
          BOOST_CHECK_LE(largest, bound);
          BOOST_CHECK_CLOSE(deviation, bound / std::sqrt(3.0), 15);
        } else {
          BOOST_CHECK_CLOSE(deviation, 1.0 / 8, 15);
        }
      }
    }
  }
}

// A rank as large as the matrices, beside all of them: what the whole model can learn, it can, at a
// rate of its own.
BOOST_AUTO_TEST_CASE(adapters_of_full_rank_learn_what_the_model_learns) {
  if (session().world_size() > 1 || TESSERA_TEST_DEVICE != DeviceKind::cpu) {
    return;  // of one rank, in f32
  }
  SmallRunOptions options = options_here(adapters_of("all", 32));
  options.steps = 200;
  options.settings.adapters->config.alpha = 32;
  options.settings.adapters->config.trains_embeddings = true;
  options.settings.schedule = {.kind = ScheduleKind::cosine, .lr = 2e-2, .total = options.steps};
  const RunBits adapted = alone(options);
  options.settings.adapters.reset();
  options.settings.schedule.lr = 5e-3;
  const RunBits whole = alone(options);
  BOOST_CHECK_LT(whole.losses.back(), 0.02 * whole.losses.front());
  BOOST_CHECK_LT(adapted.losses.back(), 1.05 * whole.losses.back());
}

BOOST_AUTO_TEST_CASE(evaluations_between_steps_are_those_of_one_rank) {
  const auto comm = all_ranks();
  const auto losses_of = [](const SmallRunOptions& options, Communicator& ranks) {
    std::vector<double> losses;
    for (const EvalReport& report : evaluations_of(options, ranks)) {
      losses.push_back(report.loss.value_or(-1));
    }
    return losses;
  };
  Alone one;
  SmallRunOptions options = options_here();
  const std::vector<double> expected = losses_of(options, one);
  options.settings.zero = ZeroStage::three;
  BOOST_TEST(losses_of(options, *comm) == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_does_not_go_with_adapters_is_refused_by_name) {
  Alone comm;
  const auto refused = [&](const SmallRunOptions& options, const std::string& text) {
    BOOST_CHECK_EXCEPTION(
        (void)run_small(options, comm), ConfigError,
        [&](const ConfigError& error) { return error.message().find(text) != std::string::npos; });
  };
  SmallRunOptions options = options_here();
  options.settings.optimizer.kind = OptimizerKind::muon;
  refused(options, "--lora does not go with --optimizer muon");
  options = options_here();
  options.settings.scratch.precision =
      quantized(options.settings.scratch.precision, QuantizationRecipe::tensor, {});
  refused(options, "--lora does not go with --precision fp8");
  options = options_here(adapters_of("all", 0));
  refused(options, "--lora 0: the rank is from 1 to 65536");
  for (const char* text : {"", "q", "all,q_proj", "q_proj,", "q_proj,q_proj", ".*_proj"}) {
    BOOST_CHECK_EXCEPTION((void)parse_projections(text, "--lora-targets"), ConfigError,
                          [](const ConfigError& error) {
                            return error.message().find("--lora-targets") != std::string::npos;
                          });
  }
}

namespace {

constexpr std::uint64_t kSeedOfWeights = 31;
constexpr std::uint64_t kSeedOfDirections = 32;
constexpr int kDirections = 3;
// The error of a central difference is h^2 L''' / 6 and 1e-16 / h.
constexpr double kDifference = 1e-5;
// f32's rounding, 6e-8, over the some hundred operations behind a gradient's element.
constexpr double kBound = 1e-5;

double uniform(std::uint64_t seed, std::uint64_t stream, Index i) {  // in [-1, 1)
  return static_cast<double>(philox(seed, stream, static_cast<std::uint64_t>(i))[0]) / 0x1p31 - 1;
}

ReferenceWeights random_weights(const ParamLayout& layout, double size) {
  ReferenceWeights weights;
  for (UnitId id = 0; id < layout.unit_count(); ++id) {
    const ParamUnit& unit = layout.unit(id);
    std::vector<double>& values = weights.emplace_back(static_cast<std::size_t>(unit.count));
    for (const ParamTensor& tensor : unit.tensors) {
      for (Index i = tensor.offset; i < tensor.offset + tensor.count(); ++i) {
        const double u = uniform(kSeedOfWeights + static_cast<std::uint64_t>(layout.unit_count()),
                                 static_cast<std::uint64_t>(id), i);
        values[static_cast<std::size_t>(i)] =
            static_cast<float>(tensor.name.ends_with("norm") ? 1 + 0.3 * u : size * u);
      }
    }
  }
  return weights;
}

// W + s B A in f64, of every target; trained embeddings in the place of the base's.
ReferenceWeights merged(const ModelConfig& config, const AdapterLayout& layout,
                        const ReferenceWeights& base, const ReferenceWeights& adapters) {
  const ParamLayout model(config);
  ReferenceWeights all = base;
  for (Index layer = 0; layer < config.num_layers; ++layer) {
    const ParamUnit& unit = layout.params().unit(layout.block(layer));
    const std::vector<double>& own = adapters[static_cast<std::size_t>(layout.block(layer))];
    const ParamUnit& block = model.unit(static_cast<UnitId>(layer) + 1);
    for (const Projection target : layout.config().targets) {
      const ProjectionRow& row = row_of(target);
      const ProjectionSizes sizes = projection_sizes(config, target);
      const ParamTensor& a = part(unit, std::string(row.suffix) + ".lora_a");
      const ParamTensor& b = part(unit, std::string(row.suffix) + ".lora_b");
      const Index rank = layout.config().rank;
      const Index begin = part(block, row.fused).offset + sizes.first_row * sizes.in;
      for (Index o = 0; o < sizes.out; ++o) {
        for (Index i = 0; i < sizes.in; ++i) {
          double sum = 0;
          for (Index r = 0; r < rank; ++r) {
            sum += own[static_cast<std::size_t>(b.offset + o * rank + r)] *
                   own[static_cast<std::size_t>(a.offset + r * sizes.in + i)];
          }
          all[static_cast<std::size_t>(layer + 1)]
             [static_cast<std::size_t>(begin + o * sizes.in + i)] += layout.config().scale() * sum;
        }
      }
    }
  }
  if (const auto embedding = layout.embedding()) {
    all.front() = adapters[static_cast<std::size_t>(*embedding)];
  }
  if (const auto head = layout.head()) {
    const std::vector<double>& own = adapters[static_cast<std::size_t>(*head)];
    std::copy(own.begin(), own.end(), all.back().begin());
  }
  return all;
}

std::vector<std::vector<float>> gradients_of(SmallRunOptions options, const ReferenceWeights& base,
                                             const ReferenceWeights& adapters, double& loss) {
  std::vector<std::vector<float>> gradients;
  const auto reading = [](const ReferenceWeights& weights) {
    return [&weights](UnitId unit, Index begin, std::span<float> values) {
      const std::vector<double>& all = weights[static_cast<std::size_t>(unit)];
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::size_t at = static_cast<std::size_t>(begin) + i;
        values[i] = at < all.size() ? static_cast<float>(all[at]) : 0.0F;
      }
    };
  };
  options.steps = 1;
  options.before = [&](TrainingRun& run) {
    run.write_base(reading(base));
    run.gather_base();
    run.shard().initialize(reading(adapters));
    run.trainer().gather_parameters();
  };
  options.after_step = [&](TrainingRun& run, const StepReport& report) {
    loss = report.loss;
    for (UnitId unit = 0; unit < run.layout().unit_count(); ++unit) {
      const auto* values = static_cast<const float*>(run.shard().grad(unit).data);
      gradients.emplace_back(values, values + run.layout().unit(unit).count);
    }
  };
  Alone comm;
  (void)run_small(options, comm);
  return gradients;
}

void check_gradients(const ModelConfig& config, const AdapterConfig& adapter_config) {
  SmallRunOptions options = options_here(adapter_config);
  options.config = config;
  const AdapterLayout layout(config, adapter_config);
  const ParamLayout model(config);
  const ReferenceWeights base = random_weights(model, 0.4);
  ReferenceWeights adapters = random_weights(layout.params(), 0.4);
  const Index length = options.settings.scratch.batch.length;
  const auto count = static_cast<std::size_t>(options.settings.trainer.global_batch * length);
  const auto loss = [&] {
    return reference_loss(config, model, merged(config, layout, base, adapters),
                          std::span(options.tokens).first(count),
                          std::span(options.targets).first(count), length)
        .objective;
  };
  double own_loss = 0;
  const auto gradients = gradients_of(options, base, adapters, own_loss);
  BOOST_CHECK_SMALL(own_loss / loss() - 1, 1e-6);
  for (UnitId id = 0; id < layout.params().unit_count(); ++id) {
    std::vector<double>& of_unit = adapters[static_cast<std::size_t>(id)];
    const std::vector<float>& gradient = gradients[static_cast<std::size_t>(id)];
    for (const ParamTensor& tensor : layout.params().unit(id).tensors) {
      const std::vector<double> kept = of_unit;
      for (int k = 0; k < kDirections; ++k) {
        double derivative = 0;
        double size = 0;
        std::vector<double> direction(of_unit.size());
        for (Index i = tensor.offset; i < tensor.offset + tensor.count(); ++i) {
          const auto at = static_cast<std::size_t>(i);
          direction[at] = uniform(kSeedOfDirections + static_cast<std::uint64_t>(k),
                                  static_cast<std::uint64_t>(id), i);
          derivative += direction[at] * static_cast<double>(gradient[at]);
          size += std::abs(direction[at] * static_cast<double>(gradient[at]));
        }
        const auto moved = [&](double by) {
          for (std::size_t i = 0; i < of_unit.size(); ++i) {
            of_unit[i] = kept[i] + by * direction[i];
          }
          const double value = loss();
          of_unit = kept;
          return value;
        };
        const double difference = (moved(kDifference) - moved(-kDifference)) / (2 * kDifference);
        BOOST_CHECK_MESSAGE(
            std::abs(difference - derivative) <= kBound * size,
            tensor.name << ": " << derivative << " for " << difference << ", of terms " << size);
        BOOST_CHECK_GT(size, 0);
      }
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(gradients_are_those_of_finite_differences) {
  if (session().world_size() > 1 || TESSERA_TEST_DEVICE != DeviceKind::cpu) {
    return;  // of one rank, in f32
  }
  AdapterConfig adapters = adapters_of("all");
  check_gradients(small_config(true), adapters);
  adapters.rank_stabilized = true;
  adapters.trains_embeddings = true;
  check_gradients(small_config(false), adapters);
  ModelConfig biased = small_config(true);
  biased.model_type = "qwen2";
  biased.qk_norm = false;
  biased.attention_bias = true;
  check_gradients(biased, adapters_of("k_proj,o_proj,up_proj", 5));
}

// Of the first block's input nothing needs the gradient where the embedding is frozen: the pass ends at its
// first layer with an adapter, and what it wrote before is what it writes on its way further down.
BOOST_AUTO_TEST_CASE(the_end_of_the_backward_pass_changes_no_gradient) {
  if (session().world_size() > 1 || TESSERA_TEST_DEVICE != DeviceKind::cpu) {
    return;  // of one rank
  }
  const ModelConfig config = small_config(true);
  const ReferenceWeights base = random_weights(ParamLayout(config), 0.4);
  for (const char* targets : {"all", "k_proj", "o_proj", "o_proj,down_proj", "up_proj",
                              "gate_proj,down_proj", "down_proj"}) {
    AdapterConfig adapters = adapters_of(targets);
    const ReferenceWeights weights = random_weights(AdapterLayout(config, adapters).params(), 0.4);
    ReferenceWeights with_embedding = weights;
    with_embedding.insert(with_embedding.begin(), base.front());
    for (const char* level : {"none", "block"}) {
      SmallRunOptions options = options_here(adapters);
      options.settings.scratch.recompute = parse_recompute(level, "--recompute");
      double loss = 0;
      const auto ends = gradients_of(options, base, weights, loss);
      options.settings.adapters->config.trains_embeddings = true;
      double other_loss = 0;
      auto goes_on = gradients_of(options, base, with_embedding, other_loss);
      goes_on.erase(goes_on.begin());
      BOOST_TEST_CONTEXT(targets << ", " << level) {
        BOOST_CHECK_EQUAL(loss, other_loss);
        BOOST_CHECK(ends == goes_on);
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
