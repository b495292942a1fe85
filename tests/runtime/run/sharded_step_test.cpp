// Parameters in shards (--zero 3) and on the host (--params host): the bits of whole copies, whatever
// the ranks have to do, and the memory and the traffic that were promised.
#define BOOST_TEST_MODULE sharded_step
#include <array>

#include <boost/test/unit_test.hpp>

#include "collectives/mpi_session.h"
#include "kernels/device/device_backend.h"
#include "optim/sharded_params.h"
#include "tests/support/run/check_bits.h"
#include "tests/support/run/memory_batches.h"
#include "tests/support/test_bench.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {

struct DeviceIsPresent {
  DeviceIsPresent() { skip_without(TESSERA_TEST_DEVICE); }
};
BOOST_TEST_GLOBAL_FIXTURE(DeviceIsPresent);

constexpr std::array kPlacements = {ParamPlacement::device, ParamPlacement::host};
constexpr Index kLayers = 5;  // more than the ring has places

// 8 micro-batches: with 3, 5 ranks some have none in the last round.
SmallRunOptions options_here(bool tied = true, Index layers = kLayers) {
  SmallRunOptions options = small_options(tied);
  options.device = own_device();
  options.config.num_layers = layers;
  return options;
}

SmallRunOptions sharded(SmallRunOptions options, ParamPlacement placement) {
  options.settings.zero = ZeroStage::three;
  options.settings.params = placement;
  return options;
}

std::string name_of(ParamPlacement placement) {
  return placement == ParamPlacement::host ? "on the host" : "on devices";
}

std::unique_ptr<Communicator> all_ranks() {
  return make_communicator(session(), own_device());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(sharded_step)

BOOST_AUTO_TEST_CASE(shards_give_the_bits_of_whole_copies) {
  const auto comm = all_ranks();
  for (const bool tied : {true, false}) {
    for (const Index layers : {1, 2, 3, 7}) {  // fewer than the ring's places, as many, more
      const RunBits expected = alone(options_here(tied, layers));
      for (const ParamPlacement placement : kPlacements) {
        SmallRunOptions options = sharded(options_here(tied, layers), placement);
        for (const Index blocks : {3, 5, 7}) {
          options.settings.param_blocks = blocks;
          check_same(run_small(options, *comm), expected,
                     std::to_string(layers) + " layers " + name_of(placement));
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(recomputed_side_by_side_and_paged_they_give_the_same_bits) {
  const auto comm = all_ranks();
  const RunBits expected = alone(options_here());
  for (const ParamPlacement placement : kPlacements) {
    for (const Recompute level : {Recompute::mlp, Recompute::block}) {
      for (const Index together : {1, 2, 3, 100}) {
        SmallRunOptions options = sharded(options_here(), placement);
        options.settings.scratch.recompute = level;
        options.settings.trainer.batched_forward = together;
        options.settings.paging = {
            .page_bytes = std::size_t{12} << 10U, .max_device_bytes = 0, .page_all = true};
        options.settings.host_grad_bytes = together == 3 ? kAllGrads : 0;
        check_same(run_small(options, *comm), expected,
                   std::to_string(together) + " together " + name_of(placement));
      }
    }
  }
}

// In groups through both passes, the last of which is smaller: with sums on the host, inputs on the
// host, pages, groups of sums; whole copies and shards.
BOOST_AUTO_TEST_CASE(backward_passes_side_by_side_change_no_bit) {
  const auto comm = all_ranks();
  const RunBits expected = alone(options_here(false));
  for (const Index together : {2, 3, 100}) {
    for (const bool is_sharded : {false, true}) {
      for (const bool on_host : {false, true}) {
        SmallRunOptions options = options_here(false);
        if (is_sharded) {
          options = sharded(options, on_host ? ParamPlacement::host : ParamPlacement::device);
        }
        options.settings.trainer.batched_forward = together;
        options.settings.trainer.batched_backward = true;
        options.settings.on_acquire = SlotContents::poison;
        if (on_host) {
          options.settings.scratch.recompute = Recompute::block;
          options.settings.scratch.inputs = InputPlacement::host;
          options.settings.host_grad_bytes = together == 2 ? kAllGrads : 1;
          options.settings.paging = {
              .page_bytes = std::size_t{12} << 10U, .max_device_bytes = 0, .page_all = true};
        }
        check_same(run_small(options, *comm), expected,
                   std::to_string(together) + " together " + (is_sharded ? "sharded" : "whole"));
      }
    }
  }
  SmallRunOptions grouped = options_here(false);
  grouped.settings.reduce_group = 2;
  const RunBits of_groups = alone(grouped);
  grouped.settings.trainer.batched_forward = 3;
  grouped.settings.trainer.batched_backward = true;
  check_same(run_small(grouped, *comm), of_groups, "groups of two");
}

// Matrices that are shared by embedding and head have one gradient, under way all the time.
BOOST_AUTO_TEST_CASE(backward_passes_of_tied_embeddings_do_not_run_side_by_side) {
  SmallRunOptions options = options_here(true);
  options.settings.trainer.batched_forward = 2;
  options.settings.trainer.batched_backward = true;
  BOOST_CHECK_THROW((void)alone(options), ContractError);
}

// The parameters are the upper halves of their masters: the update reads what it writes.
BOOST_AUTO_TEST_CASE(packed_masters_live_in_the_shards) {
  const auto comm = all_ranks();
  SmallRunOptions options = options_here();
  options.settings.scratch.precision =
      precision_of(own_device().kind == DeviceKind::cpu ? Precision::bf16_params : Precision::bf16);
  const RunBits expected = alone(options);
  const RunBits whole = run_small(options, *comm);
  options.settings.masters = MasterStorage::packed;
  options.settings.paging.page_bytes = std::size_t{10} << 10U;
  for (const bool page_all : {true, false}) {
    options.settings.paging.page_all = page_all;
    for (const ParamPlacement placement : kPlacements) {
      const RunBits bits = run_small(sharded(options, placement), *comm);
      check_same(bits, expected, "packed " + name_of(placement));
      BOOST_CHECK(bits.state == whole.state);
    }
  }
}

BOOST_AUTO_TEST_CASE(another_optimizer_and_groups_give_the_same_bits) {
  const auto comm = all_ranks();
  SmallRunOptions options = options_here();
  options.settings.optimizer.kind = OptimizerKind::muon;
  options.settings.schedule.matrix_lr = options.settings.schedule.lr;
  RunBits expected = alone(options);
  for (const ParamPlacement placement : kPlacements) {
    check_same(run_small(sharded(options, placement), *comm), expected, "muon");
  }
  options = options_here(false);
  options.settings.reduce_group = 2;
  expected = alone(options);
  for (const ParamPlacement placement : kPlacements) {
    check_same(run_small(sharded(options, placement), *comm), expected, "groups of two");
  }
}

BOOST_AUTO_TEST_CASE(evaluations_between_steps_are_those_of_whole_copies) {
  const auto comm = all_ranks();
  const auto losses_of = [](const SmallRunOptions& options, Communicator& ranks) {
    std::vector<double> losses;
    for (const EvalReport& report : evaluations_of(options, ranks)) {
      losses.push_back(report.loss.value_or(-1));
      losses.push_back(static_cast<double>(report.correct));
    }
    return losses;
  };
  Alone one;
  const std::vector<double> expected = losses_of(options_here(), one);
  BOOST_TEST(expected.size() == 8U);
  for (const ParamPlacement placement : kPlacements) {
    BOOST_TEST(losses_of(sharded(options_here(), placement), *comm) == expected,
               boost::test_tools::per_element());
  }
}

// A rank stores its shard, embedding and head, and three blocks.
BOOST_AUTO_TEST_CASE(a_rank_stores_its_shard_and_a_few_blocks) {
  const auto comm = all_ranks();
  for (const ParamPlacement placement : kPlacements) {
    SmallRunOptions options = sharded(options_here(true, 7), placement);
    options.steps = 1;
    Arena arena(options.device, ArenaMode::dry_run);
    MemoryBatches batches(batches_of(options, *comm));
    const TrainingRun run(options.config, options.settings, *comm, batches, arena);
    const ParamLayout layout(options.config);
    const std::size_t element = size_in_bytes(options.settings.scratch.precision.params);
    const auto padded = [&](UnitId unit) {
      return static_cast<std::size_t>(padded_count(layout.unit(unit).count, comm->world_size())) *
             element;
    };
    std::size_t all = 0;
    for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
      all += padded(unit);
    }
    std::size_t on_device = 0;
    std::size_t on_host = 0;
    for (const ArenaEntry& entry : arena.entries()) {
      if (entry.name.starts_with("parameter")) {
        (entry.kind == MemoryKind::device ? on_device : on_host) += entry.bytes;
      }
    }
    const std::size_t shard = all / static_cast<std::size_t>(comm->world_size());
    if (comm->world_size() == 1 && placement == ParamPlacement::device) {
      BOOST_TEST(on_device == all);  // alone the shard is all there is
      continue;
    }
    const std::size_t in_use =
        padded(0) + padded(layout.head()) + ShardedParams::kLeastBlocks * padded(1);
    BOOST_TEST(on_device == in_use + (placement == ParamPlacement::device ? shard : 0));
    BOOST_TEST(on_host == (placement == ParamPlacement::host ? shard : 0));
  }
}

// A micro-batch gathers each block at most twice, less what the ring keeps where a pass turns, and
// embedding and head once a step.
BOOST_AUTO_TEST_CASE(a_step_gathers_no_more_than_it_must) {
  const auto comm = all_ranks();
  if (comm->world_size() == 1) {
    return;
  }
  SmallRunOptions options = sharded(options_here(true, 7), ParamPlacement::device);
  SmallRunOptions whole = options_here(true, 7);
  const auto operations = [&](const SmallRunOptions& base, int steps) {
    SmallRunOptions run = base;
    run.steps = steps;
    run.settings.trainer.global_batch = 2 * 2 * comm->world_size();  // two micro-steps
    const Traffic before = comm->traffic();
    (void)run_small(run, *comm);
    return (comm->traffic() - before).operations;
  };
  const auto step_of = [&](const SmallRunOptions& base) {
    return operations(base, 3) - operations(base, 2);
  };
  // whole copies: an all-gather for each of 9 units
  const std::int64_t exchanges = step_of(whole) - 9;
  constexpr std::int64_t kForward = 7;
  constexpr std::int64_t kBackward = 7 - ShardedParams::kLeastBlocks;
  constexpr std::int64_t kOnce = 2;  // embedding and head
  // the second forward pass finds the first three blocks in the ring
  const std::int64_t gathers =
      kOnce + kForward + kBackward + (kForward - ShardedParams::kLeastBlocks) + kBackward;
  BOOST_TEST(step_of(options) - exchanges == gathers);
}

// Both passes of a group gather each block once, whatever its size.
BOOST_AUTO_TEST_CASE(a_group_gathers_each_block_once_for_each_pass) {
  const auto comm = all_ranks();
  if (comm->world_size() == 1) {
    return;
  }
  const auto gathers_of_step = [&](Index together) {
    const auto operations = [&](bool is_sharded, int steps) {
      SmallRunOptions options = options_here(false, 7);
      if (is_sharded) {
        options = sharded(options, ParamPlacement::device);
      }
      options.steps = steps;
      options.settings.trainer.global_batch = 2 * 4 * comm->world_size();  // four micro-steps
      options.settings.trainer.batched_forward = together;
      options.settings.trainer.batched_backward = together > 1;
      const Traffic before = comm->traffic();
      (void)run_small(options, *comm);
      return (comm->traffic() - before).operations;
    };
    constexpr std::int64_t kUnits = 9;  // of whole copies, gathered once a step
    return operations(true, 3) - operations(true, 2) -
           (operations(false, 3) - operations(false, 2) - kUnits);
  };
  constexpr std::int64_t kOnce = 2;  // embedding and head
  constexpr std::int64_t kTurned = 7 - ShardedParams::kLeastBlocks;
  BOOST_TEST(gathers_of_step(4) == kOnce + 7 + kTurned);
  BOOST_TEST(gathers_of_step(2) == kOnce + 7 + 3 * kTurned);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
