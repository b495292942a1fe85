// Parameters by lease, in whole copies, shards and shards on the host: what ranks wrote to their
// shards is what every rank reads, in every order of the streams' work, and each event is needed;
// which blocks a ring holds; leases nest two deep and end once.
#define BOOST_TEST_MODULE param_stores

#include <array>
#include <memory>
#include <optional>
#include <utility>

#include <boost/test/unit_test.hpp>

#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/device/cpu/deferred.h"
#include "model/model_config.h"
#include "optim/replicated_params.h"
#include "optim/sharded_params.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {

constexpr std::uint64_t kOrders = 20;
constexpr int kUpdates = 3;

enum class Store : std::uint8_t { whole, shards, host_shards };
constexpr std::array kStores = {Store::whole, Store::shards, Store::host_shards};

constexpr Index kLayers = 8;

ModelConfig small_model() {
  ModelConfig c = preset("tiny");
  c.vocab_size = 61;
  c.hidden_size = 32;
  c.num_layers = kLayers;
  return c;
}

struct Ranks {
  Ranks() : comm(make_communicator(session(), Device{})) {}

  [[nodiscard]] std::unique_ptr<ParamStore> make(Store store, Stream& communication, Stream& fetch,
                                                 Arena& arena) const {
    if (store == Store::whole) {
      return std::make_unique<ReplicatedParams>(layout, DType::f32, *comm, communication, arena);
    }
    return std::make_unique<ShardedParams>(
        layout,
        ShardedParams::Options{
            .dtype = DType::f32,
            .placement = store == Store::shards ? ParamPlacement::device : ParamPlacement::host,
            .blocks = blocks},
        *comm, ShardedParams::Streams{communication, fetch}, arena);
  }

  // Updates of all units, each read by leases afterwards, upwards and down again. True if every rank
  // read every shard.
  [[nodiscard]] bool run(Store store) const {
    Stream updates(Device{}, StreamPriority::normal, "updates");
    Stream communication(Device{}, StreamPriority::high, "communication");
    Stream fetch(Device{}, StreamPriority::high, "fetch");
    Stream compute(Device{}, StreamPriority::normal, "compute");
    Arena arena(Device{}, ArenaMode::allocate);
    const std::unique_ptr<ParamStore> made = make(store, communication, fetch, arena);
    ParamStore& params = *made;
    std::vector<UnitId> asked;
    params.set_pending_updates({.before_acquire = [&asked](UnitId unit) { asked.push_back(unit); },
                                .are_queued = [](UnitId) { return false; }});
    std::vector<UnitId> order;
    for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
      order.push_back(unit);
    }
    order.insert(order.end(), order.rbegin(), order.rend());
    bool right = true;
    for (int update = 0; update < kUpdates; ++update) {
      std::vector<std::vector<float>> written;
      std::vector<std::vector<float>> read;
      for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
        const TensorView shard = params.local_shard(unit);
        written.emplace_back(static_cast<std::size_t>(shard.count()),
                             value_of(update, unit, comm->rank()));
        copy_async({written.back().data(), DType::f32, shard.shape, Device{}}, shard, updates);
        params.all_gather(unit, updates);
      }
      for (const UnitId unit : order) {
        const ParamLease lease = params.acquire(unit, compute);
        right = right && lease.version() == update + 1;  // gathered once an update
        read.emplace_back(static_cast<std::size_t>(lease.params().count()), -1.0F);
        copy_async(lease.params(), {read.back().data(), DType::f32, lease.params().shape, Device{}},
                   compute);
      }
      compute.synchronize();
      communication.synchronize();
      updates.synchronize();
      comm->barrier();
      for (std::size_t i = 0; i < order.size(); ++i) {
        const UnitId unit = order[i];
        const std::vector<float>& values = read[i];
        const auto shard = values.size() / static_cast<std::size_t>(comm->world_size());
        for (std::size_t k = 0; k < values.size(); ++k) {
          right = right && values[k] == value_of(update, unit, static_cast<int>(k / shard));
        }
      }
    }
    // units that come ahead of use are asked for ahead
    BOOST_TEST((store == Store::whole ? asked.size() == kUpdates * order.size()
                                      : asked.size() > kUpdates * order.size()));
    return right;
  }

  static float value_of(int update, UnitId unit, int rank) {
    return static_cast<float>(100 * update + 10 * unit + rank);
  }

  ParamLayout layout{small_model()};
  std::unique_ptr<Communicator> comm;
  Index blocks = ShardedParams::kLeastBlocks;
};

// A store that counts how often each unit is open.
class CountingGate final : public ParamGate {
 public:
  std::array<int, 4> open_units{};
  std::array<int, 4> ends{};
  std::array<std::int64_t, 4> versions{};

 private:
  ConstTensorView open(UnitId unit, Stream& /*compute*/) override {
    ++open_units.at(static_cast<std::size_t>(unit));
    return {};
  }
  [[nodiscard]] std::int64_t version(UnitId unit) const override {
    return versions.at(static_cast<std::size_t>(unit));
  }
  void close(UnitId unit, Stream& /*compute*/) noexcept override {
    --open_units.at(static_cast<std::size_t>(unit));
    ++ends.at(static_cast<std::size_t>(unit));
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(param_stores, Ranks)

BOOST_AUTO_TEST_CASE(every_rank_reads_every_shard_in_every_order) {
  for (const Store store : kStores) {
    BOOST_TEST(run(store));
    for (std::uint64_t seed = 0; seed < kOrders; ++seed) {
      const cpu::DeferredMode deferred(seed * 1000 + static_cast<std::uint64_t>(comm->rank()));
      BOOST_REQUIRE(run(store));
    }
  }
}

// All of them stay on the device between two updates, and no more are allocated than there are.
BOOST_AUTO_TEST_CASE(a_larger_ring_reads_the_same) {
  for (const Index larger : {kLayers - 1, kLayers, Index{100}}) {
    blocks = larger;
    for (const Store store : {Store::shards, Store::host_shards}) {
      BOOST_TEST(run(store));
      for (std::uint64_t seed = 0; seed < kOrders / 2; ++seed) {
        const cpu::DeferredMode deferred(seed * 1000 + static_cast<std::uint64_t>(comm->rank()));
        BOOST_REQUIRE(run(store));
      }
    }
  }
}

// However many blocks there is room for, no more than the least are asked for before the first one is
// used while updates are to be queued: the work that hides them comes first.
BOOST_AUTO_TEST_CASE(blocks_come_no_further_ahead_than_updates_are_queued) {
  blocks = 100;
  for (const Store store : {Store::shards, Store::host_shards}) {
    Stream stream(Device{}, StreamPriority::normal, "all");
    Arena arena(Device{}, ArenaMode::allocate);
    const std::unique_ptr<ParamStore> params = make(store, stream, stream, arena);
    UnitId queued = -1;
    params->set_pending_updates({.before_acquire =
                                     [&](UnitId unit) {
                                       for (; queued < std::min(unit + 2, layout.unit_count() - 1);
                                            ++queued) {
                                         zero_async(params->local_shard(queued + 1), stream);
                                         params->all_gather(queued + 1, stream);
                                       }
                                     },
                                 .are_queued = [&queued](UnitId unit) { return unit <= queued; }});
    (void)params->acquire(0, stream);
    BOOST_TEST(queued <= 2 + static_cast<UnitId>(ShardedParams::kLeastBlocks));
    (void)params->acquire(1, stream);
    BOOST_TEST(queued <= 3 + static_cast<UnitId>(ShardedParams::kLeastBlocks));
  }
}

BOOST_AUTO_TEST_CASE(each_event_is_missed_when_it_is_left_out) {
  for (const Store store : kStores) {
    std::vector<std::string> names;
    {
      const cpu::DeferredMode deferred(1);
      (void)run(store);
      names = deferred.waited_names();
    }
    for (const std::string& name : names) {
      bool missed = false;
      for (std::uint64_t seed = 0; seed < kOrders && !missed; ++seed) {
        cpu::DeferredMode deferred(seed * 1000 + static_cast<std::uint64_t>(comm->rank()));
        deferred.ignore_waits_on(name);
        missed = !comm->all_agree(run(store));
      }
      BOOST_CHECK_MESSAGE(missed, "without " << name << " nothing went wrong");
    }
  }
}

// A pass up and down gathers each block once, and the last ones not again; another up finds the first
// ones there. Embedding and head come once.
BOOST_AUTO_TEST_CASE(a_ring_keeps_the_blocks_where_a_pass_turns) {
  if (comm->world_size() == 1) {
    return;  // nothing is counted
  }
  Stream stream(Device{}, StreamPriority::normal, "all");
  Arena arena(Device{}, ArenaMode::allocate);
  const std::unique_ptr<ParamStore> params = make(Store::shards, stream, stream, arena);
  for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
    zero_async(params->local_shard(unit), stream);
    params->all_gather(unit, stream);
  }
  std::int64_t known = comm->traffic().operations;
  const auto gathered = [&] {
    return comm->traffic().operations - std::exchange(known, comm->traffic().operations);
  };
  const auto pass = [&](UnitId first, UnitId last) {
    for (UnitId unit = first; unit != last; unit += first < last ? 1 : -1) {
      (void)params->acquire(unit, stream);
    }
    return gathered();
  };
  constexpr Index kRest = kLayers - ShardedParams::kLeastBlocks;
  const UnitId head = layout.head();
  BOOST_TEST(pass(0, head + 1) == kLayers + 2);  // up: all
  BOOST_TEST(pass(head - 1, 0) == kRest);        // down from the last block
  BOOST_TEST(pass(0, head + 1) == kRest);        // up again: the first ones are there
  BOOST_TEST(pass(0, head + 1) == kLayers);      // an evaluation behind another
  for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
    params->all_gather(unit, stream);  // an update: nothing is there any more
  }
  BOOST_TEST(pass(0, head + 1) == kLayers + 2);
}

BOOST_AUTO_TEST_CASE(leases_nest_two_deep_and_end_once) {
  Stream stream(Device{}, StreamPriority::normal, "test");
  CountingGate gate;
  gate.versions[1] = 7;
  {
    const ParamLease outer = gate.acquire(0, stream);
    std::optional<ParamLease> inner(gate.acquire(1, stream));
    BOOST_CHECK_THROW((void)gate.acquire(2, stream), ContractError);
    BOOST_TEST((gate.open_units[0] == 1 && gate.open_units[1] == 1 && gate.open_units[2] == 0));
    gate.versions[1] = 8;  // of a later lease
    BOOST_TEST(inner->version() == 7);
    ParamLease moved = std::move(*inner);
    BOOST_TEST(moved.version() == 7);
    inner.reset();
    BOOST_TEST((gate.open_units[1] == 1 && gate.ends[1] == 0));
    {
      const ParamLease last = std::move(moved);
      BOOST_TEST(gate.ends[1] == 0);
    }
    BOOST_TEST((gate.open_units[1] == 0 && gate.ends[1] == 1));
    const ParamLease other = gate.acquire(2, stream);
    BOOST_TEST(gate.ends[2] == 0);
  }
  BOOST_TEST((gate.ends[0] == 1 && gate.ends[1] == 1 && gate.ends[2] == 1));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
