// The whole step: bit-identical on any number of ranks, for every page size, recompute level and
// order that the events allow; nothing left of a poisoned workspace.
#define BOOST_TEST_MODULE whole_step
#include <cmath>

#include <boost/test/unit_test.hpp>

#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/device/device_backend.h"
#include "tests/support/run/check_bits.h"
#include "tests/support/test_bench.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {

struct DeviceIsPresent {
  DeviceIsPresent() { skip_without(TESSERA_TEST_DEVICE); }
};
BOOST_TEST_GLOBAL_FIXTURE(DeviceIsPresent);

SmallRunOptions options_here(bool tied = true) {
  SmallRunOptions options = small_options(tied);
  options.device = own_device();
  return options;
}

std::unique_ptr<Communicator> all_ranks() {
  return make_communicator(session(), own_device());
}

PagingOptions pages(std::size_t page_bytes, bool page_all, std::size_t limit = 0, int buffers = 3) {
  return {.page_bytes = page_bytes,
          .max_device_bytes = limit,
          .buffers = buffers,
          .page_all = page_all};
}

constexpr std::size_t kSmallPage = std::size_t{12} << 10U;  // 1024 elements

}  // namespace

BOOST_AUTO_TEST_SUITE(whole_step)

BOOST_AUTO_TEST_CASE(any_number_of_ranks_gives_the_bits_of_one) {
  const auto comm = all_ranks();
  for (const bool tied : {true, false}) {
    const SmallRunOptions options = options_here(tied);
    const RunBits expected = alone(options);
    BOOST_CHECK(std::isfinite(expected.losses.back()));
    BOOST_CHECK_LT(expected.losses.back(), expected.losses.front());
    check_same(run_small(options, *comm), expected, tied ? "tied" : "untied");
    check_same(run_small(options, *comm), expected, "a second run");
  }
}

BOOST_AUTO_TEST_CASE(groups_of_micro_batches_are_summed_alike_on_any_number_of_ranks) {
  const auto comm = all_ranks();
  for (const Index group : {2, 3, 4, 8}) {
    SmallRunOptions options = options_here();
    options.settings.reduce_group = group;
    check_same(run_small(options, *comm), alone(options), "group of " + std::to_string(group));
  }
}

// With micro-batches that fill every round, that leave a group cut at the end, and groups empty.
BOOST_AUTO_TEST_CASE(groups_that_are_added_inside_nodes_change_no_bit) {
  const auto comm = all_ranks();
  for (const int node : {2, 4}) {
    for (const Index group : {2, 4}) {
      if (!reduces_hierarchically(group, comm->world_size(), node)) {
        continue;  // flat: the case above
      }
      for (const Index micro_batches : {8, 11, 13}) {
        SmallRunOptions options = options_here(micro_batches == 11);
        options.steps = 2;
        options.settings.reduce_group = group;
        options.settings.trainer.global_batch = 2 * micro_batches;
        if (node == 4) {
          options.settings.scratch.recompute = Recompute::block;
          options.settings.paging = pages(kSmallPage, true);
        }
        const RunBits expected = alone(options);
        Traffic before = comm->traffic();
        check_same(run_small(options, *comm), expected, "flat");
        const Traffic flat = comm->traffic() - before;
        options.settings.node_ranks = node;
        options.settings.host_grad_bytes = node == 4 ? kAllGrads : 0;
        before = comm->traffic();
        check_same(run_small(options, *comm), expected,
                   "groups of " + std::to_string(group) + " in nodes of " + std::to_string(node));
        BOOST_CHECK_GT((comm->traffic() - before).operations, flat.operations);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(groups_are_added_inside_nodes_where_nothing_cuts_them) {
  BOOST_CHECK(reduces_hierarchically(8, 16, 8));
  BOOST_CHECK(reduces_hierarchically(4, 16, 8));
  BOOST_CHECK(reduces_hierarchically(2, 6, 4));    // the last node holds one group
  BOOST_CHECK(!reduces_hierarchically(1, 16, 8));  // no groups
  BOOST_CHECK(!reduces_hierarchically(8, 8, 8));   // one node
  BOOST_CHECK(!reduces_hierarchically(3, 16, 8));  // nodes cut groups
  BOOST_CHECK(!reduces_hierarchically(4, 6, 4));   // rounds do
  BOOST_CHECK(!reduces_hierarchically(2, 8, 1));   // ranks of a node do not follow one another
}

// A vocabulary larger than a block, whole or in as many pieces as the staging of a block makes of
// it.
BOOST_AUTO_TEST_CASE(pieces_of_the_vocabularys_gradient_change_no_bit) {
  const auto comm = all_ranks();
  for (const bool tied : {true, false}) {
    SmallRunOptions options = options_here(tied);
    options.config.vocab_size = 2000;
    const RunBits expected = alone(options);
    for (const Index elements : {Index{0}, Index{20'000}}) {
      options.settings.piece_elements = elements;
      options.after_step = [](TrainingRun& run, const StepReport&) {
        BOOST_TEST(run.grads().slots().embedding_count() > run.grads().slots().slot_count());
      };
      check_same(run_small(options, *comm), expected, "pieces");
    }
  }
}

// SGD's numbers on any ranks, and in pages of any residency.
BOOST_AUTO_TEST_CASE(another_optimizer_pages_and_gives_the_bits_of_one_rank) {
  const auto comm = all_ranks();
  SmallRunOptions options = options_here();
  options.settings.optimizer.kind = OptimizerKind::sgd;
  options.settings.optimizer.decay = 0.01;
  options.settings.schedule.lr = 0.1;
  const RunBits expected = alone(options);
  BOOST_CHECK_LT(expected.losses.back(), expected.losses.front());
  for (const PagingOptions& paging :
       {pages(kSmallPage, true), pages(kSmallPage, false, 5 * kSmallPage, 2),
        pages(kSmallPage, false, 0)}) {
    options.settings.paging = paging;
    check_same(run_small(options, *comm), expected, "sgd");
  }
  options.settings.optimizer.sgd.momentum = 0;
  BOOST_CHECK(!(alone(options) == expected));
}

BOOST_AUTO_TEST_CASE(recomputation_changes_no_bit) {
  const auto comm = all_ranks();
  const RunBits expected = alone(options_here());
  for (const Recompute level : {Recompute::attention, Recompute::mlp, Recompute::block}) {
    SmallRunOptions options = options_here();
    options.settings.scratch.recompute = level;
    check_same(run_small(options, *comm), expected,
               "level " + std::to_string(static_cast<int>(level)));
  }
}

// In some layers, in all but the last, at levels that differ from layer to layer; with forward passes
// side by side, after which every layer comes from its input, and with inputs on the host.
BOOST_AUTO_TEST_CASE(recomputation_by_layer_changes_no_bit) {
  const auto comm = all_ranks();
  SmallRunOptions options = options_here();
  options.config.num_layers = 4;
  const RunBits expected = alone(options);
  int turn = 0;
  for (const char* text : {"mlp:1", "block:1", "attention:2", "mlp:3", "block:4", "block:2,mlp",
                           "mlp:1,block:2", "attention:1,mlp:1,block"}) {
    options.settings.scratch.recompute = parse_recompute(text, "--recompute");
    options.settings.trainer.batched_forward = ++turn % 3 == 0 ? 2 : 1;
    options.settings.scratch.inputs = turn % 2 == 0 ? InputPlacement::host : InputPlacement::device;
    check_same(run_small(options, *comm), expected, text);
  }
}

BOOST_AUTO_TEST_CASE(block_inputs_on_the_host_change_no_bit) {
  const auto comm = all_ranks();
  for (const Index layers : {1, 3, 4, 7}) {  // fewer than places on the device, one more, many
    SmallRunOptions options = options_here();
    options.config.num_layers = layers;
    const RunBits expected = alone(options);
    options.settings.scratch.recompute = Recompute::block;
    options.settings.scratch.inputs = InputPlacement::host;
    for (const Index together : {1, 3}) {
      options.settings.trainer.batched_forward = together;
      check_same(run_small(options, *comm), expected,
                 std::to_string(layers) + " blocks, " + std::to_string(together) + " together");
    }
  }
}

BOOST_AUTO_TEST_CASE(forward_passes_side_by_side_change_no_bit) {
  const auto comm = all_ranks();
  for (const bool tied : {true, false}) {
    const RunBits expected = alone(options_here(tied));
    for (const Index together : {1, 4, 100}) {
      for (const Recompute level : {Recompute::none, Recompute::block}) {
        SmallRunOptions options = options_here(tied);
        options.settings.trainer.batched_forward = together;
        options.settings.scratch.recompute = level;
        options.settings.paging = pages(kSmallPage, true);
        check_same(run_small(options, *comm), expected,
                   std::to_string(together) + " micro-batches together");
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(gradient_sums_on_the_host_change_no_bit) {
  const auto comm = all_ranks();
  for (const bool tied : {true, false}) {
    const RunBits expected = alone(options_here(tied));
    for (const PagingOptions& paging :
         {pages(kSmallPage, true), pages(kSmallPage, false, 5 * kSmallPage, 2),
          pages(kSmallPage, false, 0)}) {
      SmallRunOptions options = options_here(tied);
      options.settings.paging = paging;
      for (const std::size_t bytes : {std::size_t{1}, kSmallPage, kAllGrads}) {
        options.settings.host_grad_bytes = bytes;
        check_same(run_small(options, *comm), expected,
                   std::string(tied ? "tied, " : "untied, ") + std::to_string(bytes));
      }
    }
  }
  SmallRunOptions options = options_here();
  options.settings.reduce_group = comm->world_size();
  const RunBits grouped = alone(options);
  options.settings.host_grad_bytes = kAllGrads;
  check_same(run_small(options, *comm), grouped, "groups of whole rounds");
}

BOOST_AUTO_TEST_CASE(a_group_that_rounds_cut_is_refused_with_sums_on_the_host) {
  Alone comm;
  SmallRunOptions options = options_here();
  options.settings.host_grad_bytes = kAllGrads;
  options.settings.reduce_group = 2;
  BOOST_CHECK_EXCEPTION((void)run_small(options, comm), ConfigError, [](const ConfigError& error) {
    return error.message().find("--grad-offload with --reduce-group 2") != std::string::npos;
  });
}

BOOST_AUTO_TEST_CASE(a_step_reports_the_sweep_that_ran_behind_it) {
  const auto comm = all_ranks();
  SmallRunOptions options = options_here();
  options.settings.paging = pages(kSmallPage, false, 3 * kSmallPage, 2);
  options.after_step = [](TrainingRun& run, const StepReport& report) {
    const std::size_t moving = run.shard().state_bytes() - run.shard().resident_bytes();
    BOOST_CHECK_GT(report.paging.pages, report.paging.resident_pages);
    if (report.step == 1) {  // no update before it
      BOOST_CHECK_EQUAL(report.paging.bytes_in + report.paging.bytes_out, 0U);
      BOOST_CHECK_EQUAL(report.paging.seconds, 0);
    } else {
      BOOST_CHECK_EQUAL(report.paging.bytes_in + report.paging.bytes_out, 2 * moving);
      BOOST_CHECK_GT(report.paging.seconds, 0);
      BOOST_CHECK_GT(report.exposed_update_seconds, 0);
    }
    BOOST_CHECK_GT(report.exposed_exchange_seconds, 0);
    BOOST_CHECK_LT(report.exposed_update_seconds + report.exposed_exchange_seconds, report.seconds);
  };
  (void)run_small(options, *comm);
}

BOOST_AUTO_TEST_CASE(without_updates_the_parameters_stay) {
  const auto comm = all_ranks();
  SmallRunOptions options = options_here();
  options.settings.trainer.update = UpdateMode::none;
  std::uint64_t hash = 0;
  options.before = [&](TrainingRun& run) { hash = run.parameter_hash(); };
  BOOST_CHECK_EQUAL(run_small(options, *comm).parameters, hash);
}

BOOST_AUTO_TEST_CASE(pages_change_no_bit_and_move_exactly_what_is_not_resident) {
  const auto comm = all_ranks();
  const RunBits expected = alone(options_here());
  const std::vector<PagingOptions> cases = {pages(kSmallPage, true),
                                            pages(kSmallPage, true, 0, 2),
                                            pages(kSmallPage, true, 0, 4),
                                            pages(3 * kSmallPage, true),
                                            pages(std::size_t{64} << 10U, true),
                                            pages(kSmallPage, false, 5 * kSmallPage),
                                            pages(kSmallPage, false, 0),
                                            pages(std::size_t{64} << 20U, true)};
  for (const PagingOptions& paging : cases) {
    SmallRunOptions options = options_here();
    options.settings.paging = paging;
    options.after_step = [](TrainingRun& run, const StepReport&) {
      run.trainer().synchronize();
      const PagingReport report = run.optimizer().report();
      const std::size_t moving = run.shard().state_bytes() - run.shard().resident_bytes();
      BOOST_CHECK_EQUAL(report.bytes_in, moving);
      BOOST_CHECK_EQUAL(report.bytes_out, moving);
      if (run.settings().paging.max_device_bytes != 0) {
        BOOST_CHECK_LE(report.device_bytes, run.settings().paging.max_device_bytes);
      }
    };
    check_same(run_small(options, *comm), expected,
               "pages of " + std::to_string(paging.page_bytes) + " bytes, " +
                   std::to_string(paging.buffers) + " buffers");
  }
}

// Masters that are packed beside parameters of bf16 values: the bits of whole ones, paged or not.
BOOST_AUTO_TEST_CASE(packed_masters_change_no_bit) {
  const auto comm = all_ranks();
  constexpr std::size_t kPackedPage = std::size_t{10} << 10U;  // 1024 elements of AdamW
  for (const OptimizerKind optimizer : {OptimizerKind::adamw, OptimizerKind::sgd}) {
    SmallRunOptions options = options_here();
    options.settings.optimizer.kind = optimizer;
    const RunBits exact = alone(options);
    options.settings.scratch.precision = precision_of(
        own_device().kind == DeviceKind::cpu ? Precision::bf16_params : Precision::bf16);
    options.settings.masters = MasterStorage::f32;
    const RunBits expected = alone(options);
    BOOST_CHECK(!(expected == exact));
    const RunBits whole = run_small(options, *comm);  // of the same ranks: their state is compared
    check_same(whole, expected, "whole");
    for (const MasterStorage masters : {MasterStorage::packed, MasterStorage::automatic}) {
      options.settings.masters = masters;
      for (const PagingOptions& paging :
           {pages(kPackedPage, true), pages(3 * kPackedPage, true, 0, 2),
            pages(kPackedPage, false, 5 * kPackedPage), pages(kPackedPage, false)}) {
        options.settings.paging = paging;
        options.before = [&](TrainingRun& run) {
          // automatic: where whole masters would not all be resident
          std::size_t whole_bytes = 0;
          for (UnitId unit = 0; unit < run.layout().unit_count(); ++unit) {
            whole_bytes += run.shard().numbers().bytes(run.shard().range(unit).shard_size());
          }
          const bool is_paged = paging.page_all || (paging.max_device_bytes != 0 &&
                                                    whole_bytes > paging.max_device_bytes);
          BOOST_TEST(run.shard().state_layout().packs_masters() ==
                     (masters == MasterStorage::packed || is_paged));
          BOOST_TEST(run.settings().optimizer.packs_masters ==
                     run.shard().state_layout().packs_masters());
        };
        const RunBits bits = run_small(options, *comm);
        check_same(bits, expected, "packed");
        BOOST_CHECK(bits.state == whole.state);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(rounded_moments_have_the_bits_of_one_rank_and_of_any_pages) {
  const auto comm = all_ranks();
  SmallRunOptions options = options_here();
  const RunBits exact = alone(options);
  for (const MomentType moments : {MomentType::bf16, MomentType::bits8}) {
    options = options_here();
    options.settings.optimizer.adamw.moments = moments;
    const RunBits expected = alone(options);
    BOOST_CHECK(!(expected == exact));
    BOOST_CHECK_CLOSE(expected.losses.back(), exact.losses.back(), 5.0);
    const RunBits own = run_small(options, *comm);
    check_same(own, expected, "resident");
    for (const PagingOptions& paging :
         {pages(kSmallPage, true), pages(std::size_t{64} << 10U, true, 0, 2),
          pages(kSmallPage, false, 5 * kSmallPage)}) {
      options.settings.paging = paging;
      const RunBits bits = run_small(options, *comm);
      check_same(bits, expected, "paged");
      BOOST_CHECK(bits.state == own.state);
    }
    options.settings.seed += 1;  // of the weights too
    BOOST_CHECK(!(alone(options) == expected));
  }
}

BOOST_AUTO_TEST_CASE(packed_masters_need_parameters_of_bf16_values) {
  Alone comm;
  SmallRunOptions options = options_here();
  options.settings.scratch.precision = precision_of(Precision::f32);
  options.settings.masters = MasterStorage::packed;
  BOOST_CHECK_EXCEPTION((void)run_small(options, comm), ConfigError, [](const ConfigError& error) {
    return error.message().find("--master-weights packed needs parameters of bf16") !=
           std::string::npos;
  });
}

BOOST_AUTO_TEST_CASE(a_limit_below_the_buffers_is_refused_by_name) {
  Alone comm;
  SmallRunOptions options = options_here();
  options.settings.paging = pages(kSmallPage, false, 2 * kSmallPage);
  BOOST_CHECK_EXCEPTION((void)run_small(options, comm), ConfigError, [](const ConfigError& error) {
    return error.message().find("--resident-bytes 24576 does not hold 3 streaming buffers") !=
           std::string::npos;
  });
}

BOOST_AUTO_TEST_CASE(stage_one_with_one_micro_step_gives_the_bits_of_stage_two) {
  const auto comm = all_ranks();
  SmallRunOptions options = options_here();
  options.settings.trainer.global_batch = Index{2} * comm->world_size();
  const RunBits expected = run_small(options, *comm);
  options.settings.zero = ZeroStage::one;
  check_same(run_small(options, *comm), expected, "one micro-step");
}

BOOST_AUTO_TEST_CASE(other_orders_of_sums_stay_within_their_rounding) {
  const auto comm = all_ranks();
  const RunBits expected = alone(options_here());
  const auto check_near = [&](const SmallRunOptions& options, const char* what) {
    const RunBits bits = run_small(options, *comm);
    // A norm is a sum over 8 micro-batches: each addition rounds by 2^-24 of the partial sum, whose
    // size the cancelling terms may raise by an order of magnitude; the first step alone is
    // compared, later ones follow from other weights.
    const double bound =
        8 * 10 *
        std::ldexp(1.0, options.settings.scratch.precision.activations == DType::bf16 ? -8 : -24);
    BOOST_CHECK_MESSAGE(std::abs(bits.norms[0] / expected.norms[0] - 1) <= bound,
                        what << ": norm " << bits.norms[0] << " for " << expected.norms[0]);
    BOOST_CHECK_EQUAL(bits.losses[0], expected.losses[0]);
    check_same(run_small(options, *comm), bits, std::string("a second run of ") + what);
  };
  SmallRunOptions options = options_here();
  options.settings.zero = ZeroStage::one;
  check_near(options, "stage 1");
  options = options_here();
  options.settings.reduce = ReduceMode::native;
  check_near(options, "the library's reduction");
}

BOOST_AUTO_TEST_CASE(a_poisoned_workspace_leaves_no_trace) {
  const auto comm = all_ranks();
  for (const bool tied : {true, false}) {
    SmallRunOptions options = options_here(tied);
    const RunBits expected = alone(options);
    options.settings.on_acquire = SlotContents::poison;
    std::vector<const void*> addresses;
    options.after_step = [&addresses](TrainingRun& run, const StepReport& report) {
      BOOST_CHECK(!report.skipped);
      for (const int slot : {0, 1}) {
        addresses.push_back(run.grads().slots().slot_address(slot));
      }
    };
    check_same(run_small(options, *comm), expected, "poisoned");
    for (std::size_t i = 2; i < addresses.size(); ++i) {
      BOOST_CHECK_EQUAL(addresses[i], addresses[i - 2]);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_number_that_is_not_finite_on_one_rank_skips_the_step_on_all) {
  const auto comm = all_ranks();
  SmallRunOptions options = options_here();
  options.steps = 3;
  std::vector<float> before;
  int steps = 0;
  options.after_step = [&](TrainingRun& run, const StepReport& report) {
    ++steps;
    run.trainer().synchronize();
    if (steps == 1) {
      if (comm->rank() == comm->world_size() - 1) {
        // a parameter of this rank's copy: forward gives NaN here alone
        const float nan = std::nanf("");
        const ParamLease lease = run.params().acquire(0, run.compute());
        const ConstTensorView& table = lease.params();
        // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): the run lets nobody write here
        const TensorView first = {const_cast<void*>(table.data), table.dtype, Shape{1},
                                  table.device};
        copy_async({&nan, DType::f32, Shape{1}, Device{}}, first, run.compute());
        run.compute().synchronize();
      }
    }
    BOOST_CHECK_EQUAL(report.skipped, steps >= 2);
    BOOST_CHECK_EQUAL(run.trainer().position().updates, 1);
    BOOST_CHECK_EQUAL(run.trainer().position().skipped, steps - 1);
    std::vector<float> state(static_cast<std::size_t>(run.shard().real_count(1)));
    run.shard().read(1, StateArray::master, 0,
                     {state.data(), DType::f32, Shape{static_cast<Index>(state.size())}, Device{}});
    if (steps == 1) {
      before = state;
    }
    BOOST_CHECK(state == before);
  };
  // token 0 must occur on that rank: every sequence begins with it
  for (std::size_t i = 0; i < options.tokens.size(); i += 16) {
    options.tokens[i] = 0;
  }
  (void)run_small(options, *comm);
  BOOST_CHECK_EQUAL(steps, 3);
}

BOOST_AUTO_TEST_CASE(a_step_without_any_target_changes_nothing_and_is_not_skipped) {
  const auto comm = all_ranks();
  SmallRunOptions options = options_here();
  std::fill(options.targets.begin(), options.targets.end(), kIgnoreTarget);
  std::uint64_t hash = 0;
  options.before = [&](TrainingRun& run) { hash = run.parameter_hash(); };
  options.after_step = [&](TrainingRun& run, const StepReport& report) {
    BOOST_CHECK_EQUAL(report.targets, 0);
    BOOST_CHECK_EQUAL(report.loss, 0);
    BOOST_CHECK_EQUAL(report.grad_norm, 0);
    BOOST_CHECK(!report.skipped);
    BOOST_CHECK_EQUAL(run.trainer().position().updates, 0);
    BOOST_CHECK_EQUAL(run.parameter_hash(), hash);
  };
  (void)run_small(options, *comm);
}

BOOST_AUTO_TEST_CASE(losses_are_means_over_targets_not_means_of_means) {
  const auto comm = all_ranks();
  SmallRunOptions options = options_here();
  options.steps = 1;
  // all targets of the first micro-batch ignored, and all but one of the second
  std::fill_n(options.targets.begin(), 2 * 16 + 31, kIgnoreTarget);
  const RunBits some = run_small(options, *comm);
  check_same(some, alone(options), "uneven targets");
  BOOST_CHECK(std::isfinite(some.losses[0]));
  BOOST_CHECK_CLOSE(some.losses[0], std::log(67.0), 5.0);
}

BOOST_AUTO_TEST_CASE(a_frozen_arena_refuses_what_comes_late) {
  Arena arena({}, ArenaMode::allocate);
  arena.freeze();
  BOOST_CHECK_THROW((void)arena.allocate(MemoryKind::host, DType::f32, {1}, "late"), ContractError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
