// The whole step with the blocks' GEMMs in 8 bits: bit-identical on any number of ranks, for every
// page size, recompute level and grouping of micro-batches; weights quantised once a step; skipped
// where a number is not finite; near the step without.
#define BOOST_TEST_MODULE quantized_step
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

#include "collectives/mpi_session.h"
#include "kernels/device/device_backend.h"
#include "tests/support/run/check_bits.h"
#include "tests/support/test_bench.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {

constexpr bool kIsCuda = TESSERA_TEST_DEVICE == DeviceKind::cuda;

// Ends the program as skipped where the device is missing, or does not multiply 8 bits.
struct DeviceIsPresent {
  DeviceIsPresent() {
    skip_without(TESSERA_TEST_DEVICE);
    if (kIsCuda) {
      const DeviceInfo info = device_info(own_device());
      if (!card_refusal(QuantizationRecipe::tensor, info.compute_capability, info.name).empty()) {
        std::exit(77);
      }
    }
  }
};
BOOST_TEST_GLOBAL_FIXTURE(DeviceIsPresent);

SmallRunOptions plain_options(bool tied = true) {
  SmallRunOptions options = small_options(tied);
  options.device = own_device();
  options.settings.scratch.precision = precision_of(kIsCuda ? DType::bf16 : DType::f32);
  return options;
}

SmallRunOptions fp8_options(bool tied = true, std::vector<LayerRange> not_quantized = {}) {
  SmallRunOptions options = plain_options(tied);
  options.settings.scratch.precision = quantized(
      options.settings.scratch.precision, QuantizationRecipe::tensor, std::move(not_quantized));
  return options;
}

std::unique_ptr<Communicator> all_ranks() {
  return make_communicator(session(), own_device());
}

constexpr std::size_t kSmallPage = std::size_t{12} << 10U;  // 1024 elements

}  // namespace

BOOST_AUTO_TEST_SUITE(quantized_step)

BOOST_AUTO_TEST_CASE(any_number_of_ranks_gives_the_bits_of_one) {
  const auto comm = all_ranks();
  for (const bool tied : {true, false}) {
    const SmallRunOptions options = fp8_options(tied);
    const RunBits expected = alone(options);
    BOOST_CHECK(std::isfinite(expected.losses.back()));
    BOOST_CHECK_LT(expected.losses.back(), expected.losses.front());
    check_same(run_small(options, *comm), expected, tied ? "tied" : "untied");
    check_same(run_small(options, *comm), expected, "a second run");
  }
}

BOOST_AUTO_TEST_CASE(recomputation_pages_groups_and_batched_forwards_change_no_bit) {
  const auto comm = all_ranks();
  const RunBits expected = alone(fp8_options());
  for (const char* level :
       {"none", "attention", "mlp", "block", "mlp:1", "block:1", "block:1,attention"}) {
    for (const Index together : {1, 3}) {
      SmallRunOptions options = fp8_options();
      options.settings.scratch.recompute = parse_recompute(level, "--recompute");
      options.settings.trainer.batched_forward = together;
      options.settings.paging = {.page_bytes = kSmallPage,
                                 .page_all = std::string_view(level) == "mlp" || together == 3};
      check_same(run_small(options, *comm), expected,
                 fmt::format("{}, {} together", level, together));
    }
  }
  SmallRunOptions grouped = fp8_options();
  grouped.settings.reduce_group = 4;
  check_same(run_small(grouped, *comm), alone(grouped), "groups");
}

// Codes of all blocks, in whose place nothing else of a block comes, or of one block at a time; of
// parameters that every rank has, or that are gathered.
BOOST_AUTO_TEST_CASE(codes_that_are_stored_or_made_at_use_have_the_same_bits) {
  const auto comm = all_ranks();
  for (const bool tied : {true, false}) {
    SmallRunOptions base = fp8_options(tied, {{1, 1}});  // one of the blocks in full precision
    base.config.num_layers = 5;
    base.config.attention_bias = !tied;
    const RunBits expected = alone(base);
    for (const CodeStorage codes :
         {CodeStorage::stored, CodeStorage::one_layout, CodeStorage::at_use}) {
      for (const std::optional<ParamPlacement> shards :
           {std::optional<ParamPlacement>(), std::optional(ParamPlacement::device),
            std::optional(ParamPlacement::host)}) {
        SmallRunOptions options = base;
        options.settings.scratch.fp8_weights = codes;
        if (shards) {
          options.settings.zero = ZeroStage::three;
          options.settings.params = *shards;
        }
        const std::string name = fmt::format("{}, {}", storage_name(codes),
                                             !shards                             ? "whole"
                                             : *shards == ParamPlacement::device ? "shards"
                                                                                 : "host");
        if (codes != CodeStorage::one_layout) {  // two of the blocks below are not recomputed
          check_same(run_small(options, *comm), expected, name);
        }
        options.settings.scratch.recompute = parse_recompute("block:2,mlp:1", "--recompute");
        check_same(run_small(options, *comm), expected, name + ", recomputed");
        options.settings.trainer.batched_forward = 3;
        options.settings.trainer.batched_backward = !tied;
        options.settings.paging = {.page_bytes = kSmallPage, .page_all = true};
        check_same(run_small(options, *comm), expected, name + ", together");
      }
    }
  }
}

// Once the codes are there, micro-steps gather no block; the next one after an update does.
BOOST_AUTO_TEST_CASE(stored_codes_take_the_place_of_gathered_blocks) {
  const auto comm = all_ranks();
  if (comm->world_size() == 1) {
    return;
  }
  CodeStorage storage = CodeStorage::stored;
  const auto operations = [&](bool is_sharded, Index micro_steps, int steps) {
    SmallRunOptions options = fp8_options();
    options.settings.scratch.fp8_weights = storage;
    options.config.num_layers = 7;
    if (is_sharded) {
      options.settings.zero = ZeroStage::three;
    }
    options.steps = steps;
    options.settings.trainer.global_batch = 2 * micro_steps * comm->world_size();
    const Traffic before = comm->traffic();
    (void)run_small(options, *comm);
    return (comm->traffic() - before).operations;
  };
  const auto gathers_of_step = [&](Index micro_steps) {
    constexpr std::int64_t kUnits = 9;  // of whole copies, gathered once a step
    return operations(true, micro_steps, 3) - operations(true, micro_steps, 2) -
           (operations(false, micro_steps, 3) - operations(false, micro_steps, 2) - kUnits);
  };
  for (const CodeStorage each : {CodeStorage::stored, CodeStorage::one_layout}) {
    storage = each;
    for (const Index micro_steps : {1, 2, 4}) {
      BOOST_TEST(gathers_of_step(micro_steps) == 9, storage_name(each));
    }
  }
}

// 8 bits are coarse, and yet near: a step that left a GEMM out, or took a wrong scale, is not.
BOOST_AUTO_TEST_CASE(losses_and_norms_are_near_those_without) {
  constexpr double kNear = 0.03;
  const RunBits plain = alone(plain_options());
  const RunBits fp8 = alone(fp8_options());
  BOOST_TEST(!(fp8 == plain));
  for (std::size_t step = 0; step < plain.losses.size(); ++step) {
    BOOST_TEST(fp8.losses[step] == plain.losses[step], boost::test_tools::tolerance(kNear));
    BOOST_TEST(fp8.norms[step] == plain.norms[step], boost::test_tools::tolerance(3 * kNear));
  }
}

BOOST_AUTO_TEST_CASE(blocks_that_are_left_out_compute_as_without) {
  const RunBits plain = alone(plain_options());
  const RunBits fp8 = alone(fp8_options());
  check_same(alone(fp8_options(true, {{0, 1}})), plain, "all blocks left out");
  const RunBits first = alone(fp8_options(true, {{0, 0}}));
  const RunBits second = alone(fp8_options(true, {{1, 1}}));
  BOOST_TEST(!(first == plain));
  BOOST_TEST(!(first == fp8));
  BOOST_TEST(!(second == plain));
  BOOST_TEST(!(second == first));
}

BOOST_AUTO_TEST_CASE(evaluations_compute_as_without) {
  std::vector<double> losses;
  for (const bool fp8 : {false, true}) {
    SmallRunOptions options = fp8 ? fp8_options() : plain_options();
    options.steps = 1;
    const std::vector<std::int32_t> order(32);
    options.before = [&](TrainingRun& run) {
      std::vector<std::int32_t> sorted(32);
      for (std::size_t i = 0; i < sorted.size(); ++i) {
        sorted[i] = static_cast<std::int32_t>(i);
      }
      const std::vector<std::int32_t> tokens(sorted);
      const ConstTensorView view(tokens.data(), DType::i32, {32}, Device{});
      losses.push_back(run.trainer()
                           .evaluate(1,
                                     [&](Index) {
                                       return Batch{.inputs = view,
                                                    .targets = view,
                                                    .token_order = view,
                                                    .target_count = 32};
                                     })
                           .loss.value());
    };
    (void)alone(options);
  }
  BOOST_TEST(losses.at(0) == losses.at(1));
}

// Two layers of [out, in] weights, and micro-batches of 32 tokens.
BOOST_AUTO_TEST_CASE(weights_are_quantised_once_a_step_and_operands_once_a_micro_batch) {
  for (const Index micro_batches : {1, 4, 8}) {
    for (const char* level : {"none", "block", "block:1"}) {
      SmallRunOptions options = fp8_options();
      options.settings.trainer.global_batch = 2 * micro_batches;
      options.settings.scratch.recompute = parse_recompute(level, "--recompute");
      options.steps = 3;
      options.before = [](TrainingRun& run) { run.trainer().count_quantized(true); };
      options.after_step = [&](TrainingRun& run, const StepReport& report) {
        for (const LinearKind kind :
             {LinearKind::qkv, LinearKind::out, LinearKind::gate_up, LinearKind::down}) {
          const auto [in, out] = linear_sizes(run.config(), kind);
          const auto values = [&](OperandKind operand) {
            return quantize_count(report.quantized.value(), kind, operand, QuantizeCount::values);
          };
          BOOST_TEST(values(OperandKind::weight) == 2 * in * out);
          BOOST_TEST(values(OperandKind::input) == 2 * in * 32 * micro_batches);
          BOOST_TEST(values(OperandKind::gradient) == 2 * out * 32 * micro_batches);
        }
      };
      (void)alone(options);
    }
  }
}

BOOST_AUTO_TEST_CASE(counts_are_those_of_all_ranks_and_counting_changes_no_bit) {
  const auto comm = all_ranks();
  std::vector<QuantizeCounts> counts;
  const auto counted = [&counts](Communicator& ranks) {
    SmallRunOptions options = fp8_options();
    options.before = [](TrainingRun& run) { run.trainer().count_quantized(true); };
    options.after_step = [&counts](TrainingRun&, const StepReport& report) {
      counts.push_back(report.quantized.value());
    };
    return run_small(options, ranks);
  };
  Alone one;
  const RunBits expected = counted(one);
  check_same(expected, alone(fp8_options()), "counting");
  const std::size_t steps = counts.size();
  check_same(counted(*comm), expected, "counting on all ranks");
  for (std::size_t step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < counts[step].size(); ++i) {
      // each rank quantises all weights
      const bool is_weight =
          i / kQuantizeCounts % kOperandKinds == static_cast<std::size_t>(OperandKind::weight);
      BOOST_TEST(counts[steps + step][i] == counts[step][i] * (is_weight ? comm->world_size() : 1));
    }
  }
}

// An infinite weight makes its tensor's scale NaN, so the loss: the step is skipped on every rank,
// and nothing changes.
BOOST_AUTO_TEST_CASE(a_step_with_a_number_that_is_not_finite_is_skipped) {
  const auto comm = all_ranks();
  SmallRunOptions options = fp8_options();
  options.steps = 2;
  options.before = [](TrainingRun& run) {
    const UnitId unit = 1;
    const ParamTensor& weight = part(run.layout().unit(unit), "mlp.down");
    const OptimizerShard range = run.shard().range(unit);
    const float infinity = std::numeric_limits<float>::infinity();
    if (range.param_start <= weight.offset && weight.offset < range.param_end) {
      run.shard().write(unit, StateArray::master, weight.offset - range.param_start,
                        {&infinity, DType::f32, Shape{1}, Device{}});
    }
    run.trainer().gather_parameters();
  };
  std::vector<std::uint64_t> hashes;
  options.after_step = [&hashes](TrainingRun& run, const StepReport& report) {
    BOOST_TEST(report.skipped);
    hashes.push_back(run.parameter_hash());
  };
  (void)run_small(options, *comm);
  BOOST_TEST(hashes.at(0) == hashes.at(1));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
