// Parameters by lease: what ranks wrote to their shards is what every rank reads, in every order of
// the streams' work, and each event is needed; leases nest two deep and end once.
#define BOOST_TEST_MODULE replicated_params
#include "optim/replicated_params.h"

#include <array>
#include <optional>

#include <boost/test/unit_test.hpp>

#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/device/cpu/deferred.h"
#include "model/model_config.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {

constexpr std::uint64_t kOrders = 20;
constexpr int kUpdates = 3;

ModelConfig two_layers() {
  ModelConfig c = preset("tiny");
  c.vocab_size = 61;
  c.hidden_size = 32;
  c.num_layers = 2;
  return c;
}

struct Ranks {
  Ranks() : comm(make_communicator(session(), Device{})) {}

  // Updates of all units, each read by a lease afterwards. True if every rank read every shard.
  [[nodiscard]] bool run() const {
    Stream updates(Device{}, StreamPriority::normal, "updates");
    Stream communication(Device{}, StreamPriority::high, "communication");
    Stream compute(Device{}, StreamPriority::normal, "compute");
    Arena arena(Device{}, ArenaMode::allocate);
    ReplicatedParams params(layout, DType::f32, *comm, communication, arena);
    std::vector<UnitId> asked;
    params.set_before_acquire([&asked](UnitId unit) { asked.push_back(unit); });
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
      for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
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
      for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
        const std::vector<float>& values = read[static_cast<std::size_t>(unit)];
        const auto shard = values.size() / static_cast<std::size_t>(comm->world_size());
        for (std::size_t i = 0; i < values.size(); ++i) {
          right = right && values[i] == value_of(update, unit, static_cast<int>(i / shard));
        }
      }
    }
    BOOST_TEST(asked.size() == static_cast<std::size_t>(kUpdates * layout.unit_count()));
    return right;
  }

  static float value_of(int update, UnitId unit, int rank) {
    return static_cast<float>(100 * update + 10 * unit + rank);
  }

  ParamLayout layout{two_layers()};
  std::unique_ptr<Communicator> comm;
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

BOOST_FIXTURE_TEST_SUITE(replicated_params, Ranks)

BOOST_AUTO_TEST_CASE(every_rank_reads_every_shard_in_every_order) {
  BOOST_TEST(run());
  for (std::uint64_t seed = 0; seed < kOrders; ++seed) {
    const cpu::DeferredMode deferred(seed * 1000 + static_cast<std::uint64_t>(comm->rank()));
    BOOST_REQUIRE(run());
  }
}

BOOST_AUTO_TEST_CASE(each_event_is_missed_when_it_is_left_out) {
  for (const char* name : {"unit.updated", "unit.gathered"}) {
    if (comm->world_size() == 1 && name == std::string_view("unit.updated")) {
      continue;  // alone the update itself completes the unit
    }
    bool missed = false;
    for (std::uint64_t seed = 0; seed < kOrders && !missed; ++seed) {
      cpu::DeferredMode deferred(seed * 1000 + static_cast<std::uint64_t>(comm->rank()));
      deferred.ignore_waits_on(name);
      missed = !comm->all_agree(run());
    }
    BOOST_CHECK_MESSAGE(missed, "without " << name << " nothing went wrong");
  }
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
