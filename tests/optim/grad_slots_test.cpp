// The buffers that gradients are made in (contract C-GRADWS-001): their sizes, that two take turns,
// that nothing of a former unit is left, and which events order them.
#include "optim/grad_slots.h"

#include <cmath>

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "kernels/device/cpu/deferred.h"
#include "model/model_config.h"
#include "optim/optimizer_shard.h"

namespace tessera {
namespace {

constexpr std::uint64_t kOrders = 30;
constexpr int kSteps = 3;

ModelConfig three_layers(bool tied) {
  ModelConfig c = preset("tiny");
  c.vocab_size = 61;
  c.hidden_size = 32;
  c.num_layers = 3;
  c.tie_embeddings = tied;
  return c;
}

using Values = std::vector<std::vector<float>>;  // per step and unit

// Steps of: fill each unit's buffer in one stream, read it in the other.
struct Turns {
  explicit Turns(bool tied) : layout(three_layers(tied)) {
    for (int step = 0; step < kSteps; ++step) {
      for (const ParamUnit& unit : layout.units()) {
        std::vector<float>& values = filled.emplace_back(static_cast<std::size_t>(unit.count));
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i] = static_cast<float>(philox(filled.size(), 0, i)[0]);
        }
        drained.emplace_back(static_cast<std::size_t>(padded_count(unit.count, 1)), -1.0F);
      }
    }
  }

  // True if every unit's gradients arrived, zeros behind them.
  bool run() {
    Stream compute(Device{}, StreamPriority::normal, "compute");
    Stream communication(Device{}, StreamPriority::high, "communication");
    Arena arena(Device{}, ArenaMode::allocate);
    GradSlots slots(layout, {.on_acquire = SlotContents::poison}, arena);
    std::size_t at = 0;
    for (int step = 0; step < kSteps; ++step) {
      for (UnitId unit = layout.head(); unit >= 0; --unit, ++at) {
        const std::size_t place =
            at - static_cast<std::size_t>(layout.head() - unit) + static_cast<std::size_t>(unit);
        const TensorView storage = slots.acquire(unit, compute);
        copy_async(view_of(filled[place]), storage.slice(0, std::ssize(filled[place])), compute);
        const TensorView complete = slots.commit(unit, compute, communication);
        BOOST_REQUIRE(complete.data == storage.data);
        copy_async(complete, view_of(drained[place]), communication);
        slots.release(unit, compute, communication);
      }
    }
    communication.synchronize();
    compute.synchronize();
    for (std::size_t i = 0; i < filled.size(); ++i) {
      std::vector<float> expected = filled[i];
      expected.resize(drained[i].size(), 0.0F);
      if (drained[i] != expected) {
        return false;
      }
    }
    return true;
  }

  static TensorView view_of(std::vector<float>& values) {
    return {values.data(), DType::f32, Shape{std::ssize(values)}, Device{}};
  }

  ParamLayout layout;
  Values filled;
  Values drained;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(grad_slots)

BOOST_AUTO_TEST_CASE(a_layer_of_qwen3_4b_takes_the_contracts_bytes) {
  constexpr Index kLayer = 100'930'816;
  const ParamLayout layout(preset("qwen3-4b"));
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Arena arena(Device{DeviceKind::cuda, 0}, ArenaMode::dry_run);
    const GradSlots slots(layout, {.grad_dtype = dtype}, arena);
    BOOST_TEST(slots.slot_count() == padded_count(kLayer, 1));
    BOOST_TEST(slots.slot_count() - kLayer < kShardAlignment);
    BOOST_TEST(slots.embedding_count() == padded_count(layout.unit(0).count, 1));
    const auto slot_bytes = static_cast<std::size_t>(slots.slot_count()) * size_in_bytes(dtype);
    const auto all =
        2 * slot_bytes + sizeof(float) * static_cast<std::size_t>(slots.embedding_count());
    BOOST_TEST(arena.total_bytes(MemoryKind::device) == all);
    BOOST_TEST(arena.entries().size() == 3U);
  }
}

BOOST_AUTO_TEST_CASE(two_slots_take_turns_and_never_move) {
  const ParamLayout layout(three_layers(false));
  Stream stream(Device{}, StreamPriority::normal, "test");
  Arena arena(Device{}, ArenaMode::allocate);
  GradSlots slots(layout, {}, arena);
  BOOST_TEST(slots.slot_address(0) != slots.slot_address(1));
  int turn = 0;
  for (int step = 0; step < kSteps; ++step) {
    for (UnitId unit = layout.head(); unit >= 0; --unit) {
      const TensorView storage = slots.acquire(unit, stream);
      BOOST_TEST(storage.count() == padded_count(layout.unit(unit).count, 1));
      const bool in_slot = layout.unit(unit).place == GradPlace::block_slot;
      BOOST_TEST(storage.data == (in_slot ? slots.slot_address(turn) : slots.embedding_address()));
      turn = in_slot ? 1 - turn : turn;
      (void)slots.commit(unit, stream, stream);
      slots.release(unit, stream, stream);
    }
  }
}

BOOST_AUTO_TEST_CASE(an_acquired_slot_is_poisoned_and_its_padding_zero) {
  const ParamLayout layout(three_layers(true));
  Stream stream(Device{}, StreamPriority::normal, "test");
  Arena arena(Device{}, ArenaMode::allocate);
  GradSlots slots(layout, {.world_size = 3, .on_acquire = SlotContents::poison}, arena);
  for (UnitId unit = layout.head(); unit >= 0; --unit) {
    const TensorView storage = slots.acquire(unit, stream);
    const auto* values = data_as<float>(storage);
    const Index count = layout.unit(unit).count;
    BOOST_TEST(storage.count() % (3 * kShardAlignment) == 0);
    for (Index i = 0; i < storage.count(); ++i) {
      BOOST_REQUIRE(i < count ? std::isnan(values[i]) : values[i] == 0);
    }
    (void)slots.commit(unit, stream, stream);
    slots.release(unit, stream, stream);
  }
}

BOOST_AUTO_TEST_CASE(gradients_arrive_in_every_order_and_each_event_is_needed) {
  for (std::uint64_t seed = 0; seed < kOrders; ++seed) {
    const cpu::DeferredMode deferred(seed);
    BOOST_REQUIRE(Turns(seed % 2 == 0).run());
  }
  for (const char* name :
       {"slot.filled", "slot.drained", "embedding.filled", "embedding.drained"}) {
    bool missed = false;
    for (std::uint64_t seed = 0; seed < kOrders && !missed; ++seed) {
      cpu::DeferredMode deferred(seed);
      deferred.ignore_waits_on(name);
      missed = !Turns(false).run();
    }
    BOOST_CHECK_MESSAGE(missed, "without " << name << " nothing went wrong");
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera
