// A base in 4 bits around whole copies, shards and shards on the host: every rank reads the widened
// values of all ranks' bytes, in every order of the streams' work, and each event is needed; what a slot
// still has is not widened again.
#define BOOST_TEST_MODULE quantized_params

#include "optim/quantized_params.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

#include <boost/test/unit_test.hpp>

#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/device/cpu/deferred.h"
#include "kernels/nf4.h"
#include "model/initialization.h"
#include "optim/replicated_params.h"
#include "optim/sharded_params.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {

constexpr std::uint64_t kOrders = 10;
constexpr int kWrites = 2;

enum class Inner : std::uint8_t { whole, shards, host_shards };
constexpr std::array kInner = {Inner::whole, Inner::shards, Inner::host_shards};

int widened = 0;  // matrices, by counting_widen

void counting_widen(const WidenNf4Args& args, Stream& stream) {
  ++widened;
  cpu::widen_nf4(args, stream);
}

ModelConfig small_model(bool tied = false) {
  ModelConfig c = preset("tiny");
  c.vocab_size = 61;
  c.hidden_size = 32;
  c.intermediate_size = 40;
  c.num_layers = 5;
  c.tie_embeddings = tied;
  return c;
}

using Bytes = std::vector<std::byte>;

struct Ranks {
  Ranks() : comm(make_communicator(session(), Device{})), kernels(kernel_table(DeviceKind::cpu)) {
    kernels.widen_nf4 = counting_widen;
    for (int number = 0; number < kWrites; ++number) {
      for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
        units.at(static_cast<std::size_t>(number)).push_back(packed_unit(number, unit));
        expected.at(static_cast<std::size_t>(number))
            .push_back(widened_unit(units[static_cast<std::size_t>(number)].back(), unit));
      }
    }
  }

  [[nodiscard]] std::unique_ptr<QuantizedParams> make(Inner inner, Stream& communication,
                                                      Stream& fetch, Arena& arena) const {
    std::unique_ptr<ParamStore> store;
    if (inner == Inner::whole) {
      store = std::make_unique<ReplicatedParams>(packed.bytes(), DType::u8, *comm, communication,
                                                 arena);
    } else {
      store = std::make_unique<ShardedParams>(
          packed.bytes(),
          ShardedParams::Options{
              .dtype = DType::u8,
              .placement = inner == Inner::shards ? ParamPlacement::device : ParamPlacement::host},
          *comm, ShardedParams::Streams{communication, fetch}, arena);
    }
    return std::make_unique<QuantizedParams>(kernels, layout, packed, std::move(store),
                                             comm->world_size(), arena);
  }

  // Of other weights at each write.
  [[nodiscard]] Bytes packed_unit(int write, UnitId unit) const {
    const Index count = layout.unit(unit).count;
    std::vector<float> values(static_cast<std::size_t>(count));
    initial_values(config, layout, unit, static_cast<std::uint64_t>(write), 0, values);
    Bytes bytes(static_cast<std::size_t>(
        padded_count(packed.bytes().unit(unit).count, comm->world_size())));
    for (const PackedPart& part : packed.parts(unit)) {
      const std::span<const float> from = std::span(values).subspan(
          static_cast<std::size_t>(part.first), static_cast<std::size_t>(part.count));
      const std::span<std::byte> to = std::span(bytes).subspan(
          static_cast<std::size_t>(part.byte), static_cast<std::size_t>(part.bytes));
      if (part.is_nf4) {
        quantize_nf4(part.name, from, to, 1);
      } else {
        std::ranges::copy(std::as_bytes(from), to.begin());
      }
    }
    return bytes;
  }

  [[nodiscard]] std::vector<float> widened_unit(const Bytes& bytes, UnitId unit) const {
    std::vector<float> values(static_cast<std::size_t>(layout.unit(unit).count));
    Stream stream(Device{}, StreamPriority::normal, "expected");
    for (const PackedPart& part : packed.parts(unit)) {
      float* to = values.data() + part.first;
      const std::byte* from = bytes.data() + part.byte;
      if (part.is_nf4) {
        cpu::widen_nf4({.packed = {from, DType::u8, Shape{part.bytes}, Device{}},
                        .out = {to, DType::f32, Shape{part.count}, Device{}}},
                       stream);
      } else {
        copy_async({from, DType::u8, Shape{part.bytes}, Device{}},
                   {to, DType::u8, Shape{part.bytes}, Device{}}, stream);
      }
    }
    stream.synchronize();
    return values;
  }

  void write(QuantizedParams& params, std::span<const Bytes> all, Stream& updates) const {
    for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
      const TensorView shard = params.local_shard(unit);
      const Index at = shard.count() * comm->rank();
      copy_async(
          {all[static_cast<std::size_t>(unit)].data() + at, DType::u8, shard.shape, Device{}},
          shard, updates);
      params.all_gather(unit, updates);
    }
  }

  // Writes all units and reads them by leases, upwards and down again, kWrites times. True if every
  // rank read what was written.
  [[nodiscard]] bool run(Inner inner) const {
    Stream updates(Device{}, StreamPriority::normal, "updates");
    Stream communication(Device{}, StreamPriority::high, "communication");
    Stream fetch(Device{}, StreamPriority::high, "fetch");
    Stream compute(Device{}, StreamPriority::normal, "compute");
    Arena arena(Device{}, ArenaMode::allocate);
    const std::unique_ptr<QuantizedParams> params = make(inner, communication, fetch, arena);
    std::vector<UnitId> order;
    for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
      order.push_back(unit);
    }
    order.insert(order.end(), order.rbegin(), order.rend());
    bool right = true;
    for (std::size_t number = 0; number < kWrites; ++number) {
      std::vector<std::vector<float>> read;
      write(*params, units[number], updates);
      for (const UnitId unit : order) {
        const ParamLease lease = params->acquire(unit, compute);
        right = right && lease.version() == static_cast<std::int64_t>(number) + 1;
        const Index count = layout.unit(unit).count;
        read.emplace_back(static_cast<std::size_t>(count), -1.0F);
        copy_async(lease.params().slice(0, count),
                   {read.back().data(), DType::f32, Shape{count}, Device{}}, compute);
      }
      compute.synchronize();
      communication.synchronize();
      updates.synchronize();
      comm->barrier();
      for (std::size_t i = 0; i < order.size(); ++i) {
        right = right && read[i] == expected[number][static_cast<std::size_t>(order[i])];
      }
    }
    return right;
  }

  ModelConfig config = small_model();
  ParamLayout layout{config};
  PackedLayout packed{config, layout, DType::f32};
  std::unique_ptr<Communicator> comm;
  KernelTable kernels;
  std::array<std::vector<Bytes>, kWrites> units;  // packed, with the padding of shards
  std::array<std::vector<std::vector<float>>, kWrites> expected;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(quantized_params, Ranks)

BOOST_AUTO_TEST_CASE(every_rank_reads_the_widened_values_in_every_order) {
  for (const Inner inner : kInner) {
    BOOST_TEST(run(inner));
    for (std::uint64_t seed = 0; seed < kOrders; ++seed) {
      const cpu::DeferredMode deferred(seed * 1000 + static_cast<std::uint64_t>(comm->rank()));
      BOOST_REQUIRE(run(inner));
    }
  }
}

BOOST_AUTO_TEST_CASE(each_event_is_missed_when_it_is_left_out) {
  for (const Inner inner : kInner) {
    std::vector<std::string> names;
    {
      const cpu::DeferredMode deferred(1);
      (void)run(inner);
      names = deferred.waited_names();
    }
    for (const std::string& name : names) {
      bool missed = false;
      for (std::uint64_t seed = 0; seed < 2 * kOrders && !missed; ++seed) {
        cpu::DeferredMode deferred(seed * 1000 + static_cast<std::uint64_t>(comm->rank()));
        deferred.ignore_waits_on(name);
        missed = !comm->all_agree(run(inner));
      }
      BOOST_CHECK_MESSAGE(missed, "without " << name << " nothing went wrong");
    }
  }
}

// Up and down again: the last blocks of a pass are there when it turns, and so are the first ones of the
// next. Whoever writes the base may use the slots' memory, which then have no block.
BOOST_AUTO_TEST_CASE(a_block_that_is_there_is_not_widened_again) {
  Stream stream(Device{}, StreamPriority::normal, "all");
  Arena arena(Device{}, ArenaMode::allocate);
  const std::unique_ptr<QuantizedParams> params = make(Inner::shards, stream, stream, arena);
  write(*params, units.front(), stream);
  const auto pass = [&](UnitId first, UnitId last) {
    const int before = widened;
    for (UnitId unit = first; unit != last; unit += first < last ? 1 : -1) {
      (void)params->acquire(unit, stream);
    }
    return widened - before;
  };
  constexpr int kMatrices = 7;
  const auto blocks = static_cast<int>(config.num_layers);
  const int rest = blocks - static_cast<int>(QuantizedParams::kSlots);
  const UnitId head = layout.head();
  BOOST_TEST(pass(0, head + 1) == kMatrices * blocks);
  BOOST_TEST(pass(head - 1, 0) == kMatrices * rest);
  BOOST_TEST(pass(0, head + 1) == kMatrices * rest);
  write(*params, units.front(), stream);
  BOOST_TEST(pass(head - 1, 0) == kMatrices * blocks);
  (void)params->spare_bytes();
  BOOST_TEST(pass(1, 3) == kMatrices * 2);
}

BOOST_AUTO_TEST_CASE(head_and_embedding_are_leased_beside_each_other) {
  Stream stream(Device{}, StreamPriority::normal, "all");
  Arena arena(Device{}, ArenaMode::allocate);
  const std::unique_ptr<QuantizedParams> params = make(Inner::whole, stream, stream, arena);
  std::optional<ParamLease> head(params->acquire(layout.head(), stream));
  std::optional<ParamLease> embedding(params->acquire(0, stream));
  BOOST_CHECK_THROW((void)params->acquire(1, stream), ContractError);
  head.reset();
  std::optional<ParamLease> block(params->acquire(1, stream));
  embedding.reset();
  const ParamLease other = params->acquire(2, stream);
  BOOST_TEST(other.params().data != block->params().data);
}

BOOST_AUTO_TEST_CASE(packed_units_have_every_element_once) {
  for (const bool tied : {true, false}) {
    for (const char* type : {"qwen3", "qwen2"}) {
      ModelConfig c = small_model(tied);
      c.model_type = type;
      c.qk_norm = c.model_type == "qwen3";
      c.attention_bias = !c.qk_norm;
      const ParamLayout model(c);
      for (const DType params : {DType::f32, DType::bf16}) {
        const PackedLayout of(c, model, params);
        for (UnitId unit = 0; unit < model.unit_count(); ++unit) {
          Index element = 0;
          Index byte = 0;
          int matrices = 0;
          for (const PackedPart& part : of.parts(unit)) {
            BOOST_TEST(part.first == element);
            BOOST_TEST((part.byte >= byte && part.byte % kPackedAlignment == 0));
            element += part.count;
            byte = part.byte + part.bytes;
            matrices += part.is_nf4 ? 1 : 0;
          }
          BOOST_TEST(element == model.unit(unit).count);
          BOOST_TEST(byte == of.bytes().unit(unit).count);
          BOOST_TEST(matrices == (unit == 0 || unit == model.head() ? 0 : 7));
          BOOST_TEST(of.is_packed(unit) == (matrices > 0));
        }
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
