// The whole step under CPU streams whose work runs in random orders that only the events constrain
// (kernels/device/cpu/deferred.h): bit-identical in every order; and with any one kind of event
// left out, a wrong result in one of them.
#define BOOST_TEST_MODULE deferred_step
#include <array>
#include <map>

#include <boost/test/unit_test.hpp>

#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/device/cpu/deferred.h"
#include "tests/support/run/alone.h"
#include "tests/support/run/small_run.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {

constexpr std::uint64_t kOrders = 50;

// Paged, poisoned, three steps of two micro-steps on each rank: everything that needs an event.
// Tied: all pages move. Untied: the first three stay, masters are packed, and the gradient's sums
// are on the host.
// Offloaded: tied, with more blocks than have places for their inputs on the device, some of which
// are recomputed.
// Muon: tied, with matrices that are orthogonalised.
// Sharded, host: parameters in shards, with more blocks than are gathered at a time.
// Codes: on the host too, with codes of 8 bits in the place of blocks.
// Groups: the untied one's micro-batches pass together, forward and backward.
// Adapters: beside such a base in shards. Nf4: the same in 4 bits.
enum class Variant : std::uint8_t {
  tied,
  untied,
  offloaded,
  muon,
  sharded,
  host,
  codes,
  groups,
  adapters,
  nf4
};
constexpr std::array kVariants = {
    Variant::tied, Variant::untied, Variant::offloaded, Variant::muon,     Variant::sharded,
    Variant::host, Variant::codes,  Variant::groups,    Variant::adapters, Variant::nf4};

SmallRunOptions paged_options(int world_size, Variant variant) {
  const bool tied = variant != Variant::untied && variant != Variant::groups;
  SmallRunOptions options = small_options(tied);
  if (variant == Variant::offloaded) {
    options.config.num_layers = 7;
    options.settings.scratch.recompute = parse_recompute("block:4", "--recompute");
    options.settings.scratch.inputs = InputPlacement::host;
  }
  if (variant == Variant::muon) {
    options.settings.optimizer.kind = OptimizerKind::muon;
    options.settings.schedule.matrix_lr = options.settings.schedule.lr;
  }
  if (variant == Variant::adapters || variant == Variant::nf4) {
    options.settings.adapters = AdapterSettings{.config = {.rank = 4,
                                                           .alpha = 8,
                                                           .rank_stabilized = false,
                                                           .targets = parse_projections("all", ""),
                                                           .trains_embeddings = false}};
    options.settings.adapters->base =
        variant == Variant::nf4 ? BaseStorage::nf4 : BaseStorage::params;
  }
  if (variant == Variant::sharded || variant == Variant::host || variant == Variant::codes ||
      variant == Variant::adapters || variant == Variant::nf4) {
    options.config.num_layers = 5;
    options.settings.zero = ZeroStage::three;
    options.settings.params =
        variant == Variant::sharded ? ParamPlacement::device : ParamPlacement::host;
  }
  if (variant == Variant::codes) {
    options.settings.scratch.precision =
        quantized(options.settings.scratch.precision, QuantizationRecipe::tensor, {});
  }
  options.settings.trainer.batched_forward = variant == Variant::groups ? 2 : 1;
  options.settings.trainer.batched_backward = variant == Variant::groups;
  options.steps = 3;
  options.settings.trainer.global_batch = Index{4} * world_size;
  options.settings.on_acquire = SlotContents::poison;
  options.settings.host_grad_bytes = tied ? 1 : kAllGrads;
  options.settings.paging = {
      .page_bytes = std::size_t{12} << 10U, .max_device_bytes = 0, .buffers = 2, .page_all = true};
  if (!tied) {
    options.settings.scratch.precision = precision_of(Precision::bf16_params);
    options.settings.masters = MasterStorage::packed;
    options.settings.paging.page_all = false;
    options.settings.paging.max_device_bytes = 5 * options.settings.paging.page_bytes;
  }
  return options;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(deferred_step)

BOOST_AUTO_TEST_CASE(every_order_that_the_events_allow_gives_the_same_bits) {
  const auto comm = make_communicator(session(), {});
  for (const Variant variant : kVariants) {
    const SmallRunOptions options = paged_options(comm->world_size(), variant);
    const RunBits expected = run_small(options, *comm);
    for (std::uint64_t seed = 0; seed < kOrders; ++seed) {
      const cpu::DeferredMode deferred(seed * 1000 + static_cast<std::uint64_t>(comm->rank()));
      const RunBits bits = run_small(options, *comm);
      BOOST_REQUIRE_MESSAGE(bits == expected, "order " << seed << ": " << text_of(bits) << " for "
                                                       << text_of(expected));
      BOOST_REQUIRE(bits.state == expected.state);
    }
  }
}

BOOST_AUTO_TEST_CASE(forward_passes_side_by_side_need_no_other_events) {
  const auto comm = make_communicator(session(), {});
  for (const Variant variant : {Variant::tied, Variant::offloaded}) {
    SmallRunOptions options = paged_options(comm->world_size(), variant);
    const RunBits expected = run_small(options, *comm);
    options.settings.trainer.batched_forward = 3;
    for (std::uint64_t seed = 0; seed < kOrders / 2; ++seed) {
      const cpu::DeferredMode deferred(seed * 1000 + static_cast<std::uint64_t>(comm->rank()));
      const RunBits bits = run_small(options, *comm);
      BOOST_REQUIRE_MESSAGE(bits == expected, "order " << seed << ": " << text_of(bits) << " for "
                                                       << text_of(expected));
    }
  }
}

BOOST_AUTO_TEST_CASE(each_event_is_missed_when_it_is_left_out) {
  const auto comm = make_communicator(session(), {});
  std::map<std::string, std::vector<Variant>> waited_in;
  for (const Variant variant : kVariants) {
    const SmallRunOptions options = paged_options(comm->world_size(), variant);
    const cpu::DeferredMode deferred(1);
    (void)run_small(options, *comm);
    for (const std::string& name : deferred.waited_names()) {
      waited_in[name].push_back(variant);
    }
  }
  BOOST_CHECK_GE(waited_in.size(), comm->world_size() == 1 ? 20U : 24U);
  for (const auto& [name, variants] : waited_in) {
    bool missed = false;
    for (auto variant = variants.begin(); variant != variants.end() && !missed; ++variant) {
      const SmallRunOptions options = paged_options(comm->world_size(), *variant);
      const RunBits expected = run_small(options, *comm);
      for (std::uint64_t seed = 0; seed < kOrders && !missed; ++seed) {
        cpu::DeferredMode deferred(seed * 1000 + static_cast<std::uint64_t>(comm->rank()));
        deferred.ignore_waits_on(name);
        const RunBits bits = run_small(options, *comm);
        const bool mine = !(bits == expected) || bits.state != expected.state;
        missed = !comm->all_agree(!mine);
      }
    }
    BOOST_CHECK_MESSAGE(missed,
                        "without " << name << " nothing went wrong in " << kOrders << " orders");
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
