// An optimizer pass is bit-identical however the state is cut into pages and wherever they are
// stored, in every order of its three streams that the events allow.
#include "optim/page_sweep.h"

#include <array>
#include <optional>

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "kernels/device/cpu/deferred.h"
#include "kernels/kernel_table.h"
#include "model/model_config.h"

namespace tessera::test {
namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::uint64_t kSeed = 20261129;
constexpr std::uint64_t kOrders = 8;  // of the streams, tried in turn
constexpr std::uint64_t kFewOrders = 2;
constexpr int kSteps = 2;

ModelConfig a_config() {
  ModelConfig config = preset("tiny");
  config.vocab_size = 61;
  config.num_layers = 2;
  return config;
}

struct Way {
  const char* name;
  OptimizerKind optimizer = OptimizerKind::adamw;
  PagingOptions paging = {};
  std::size_t host_grad_bytes = 0;
  DType param_values = DType::f32;
  bool packs_masters = false;
  MomentType moments = MomentType::f32;
};

OptimizerOptions optimizer_of(const Way& way) {
  return {.kind = way.optimizer,
          .param_values = way.param_values,
          .packs_masters = way.packs_masters,
          .rounding_seed = kSeed,
          .adamw = {.moments = way.moments},
          .sgd = {}};
}

// Of the first rank, each unit's.
std::vector<std::vector<float>> params_for(const ParamLayout& layout, int world_size) {
  std::vector<std::vector<float>> params;
  for (const ParamUnit& unit : layout.units()) {
    params.emplace_back(static_cast<std::size_t>(padded_count(unit.count, world_size) / world_size),
                        -1.0F);
  }
  return params;
}

// A shard with a sweep over it, under streams of its own.
class Bench {
 public:
  explicit Bench(const Way& way, int world_size = 2)
      : rule_(make_update_rule(kernel_table(DeviceKind::cpu), optimizer_of(way))),
        params_(params_for(layout_, world_size)),
        shard_(layout_,
               {.world_size = world_size,
                .layout = rule_->layout(),
                .params = [this](UnitId unit) { return params(unit); },
                .paging = way.paging,
                .host_grad_bytes = way.host_grad_bytes},
               arena_),
        sweep_(*rule_, shard_, {page_in_, update_, page_out_}, arena_) {
    shard_.initialize([](UnitId unit, Index begin, std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(
            normal(kSeed, static_cast<std::uint64_t>(unit), static_cast<std::uint64_t>(begin) + i));
      }
    });
    for (UnitId unit = 0; unit < layout_.unit_count(); ++unit) {
      const TensorView grad = shard_.grad(unit);
      for (Index i = 0; i < grad.count(); ++i) {
        data_as<float>(grad)[i] = static_cast<float>(
            normal(kSeed + 1, static_cast<std::uint64_t>(unit), static_cast<std::uint64_t>(i)));
      }
    }
  }

  void update_all(int step) {
    sweep_.begin_sweep();
    for (UnitId unit = 0; unit < layout_.unit_count(); ++unit) {
      sweep_.update(unit, {.updates = step, .lr = 0.01, .grad_scale = 0.5}, params(unit));
    }
  }
  void write_all() {
    sweep_.begin_sweep();
    for (UnitId unit = 0; unit < layout_.unit_count(); ++unit) {
      sweep_.write_params(unit, params(unit));
    }
    sweep_.synchronize();
  }

  [[nodiscard]] TensorView params(UnitId unit) {
    std::vector<float>& values = params_.at(static_cast<std::size_t>(unit));
    return {values.data(), DType::f32, Shape{static_cast<Index>(values.size())}, Device{}};
  }

  // All arrays of all units, and then all parameters.
  [[nodiscard]] std::vector<float> numbers() {
    sweep_.synchronize();
    std::vector<float> all;
    for (UnitId unit = 0; unit < layout_.unit_count(); ++unit) {
      for (const StateArraySpec& spec : shard_.numbers().arrays()) {
        std::vector<float> values(static_cast<std::size_t>(shard_.grad(unit).count()));
        shard_.read(unit, spec.array, 0,
                    {values.data(), DType::f32, Shape{std::ssize(values)}, Device{}});
        all.insert(all.end(), values.begin(), values.end());
      }
    }
    for (const std::vector<float>& values : params_) {
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  [[nodiscard]] PageSweep& sweep() noexcept { return sweep_; }
  [[nodiscard]] ShardState& shard() noexcept { return shard_; }
  [[nodiscard]] UnitId units() const { return layout_.unit_count(); }

 private:
  ParamLayout layout_{a_config()};
  Arena arena_{Device{}, ArenaMode::allocate};
  Stream page_in_{Device{}, StreamPriority::normal, "page in"};
  Stream update_{Device{}, StreamPriority::normal, "update"};
  Stream page_out_{Device{}, StreamPriority::normal, "page out"};
  std::unique_ptr<UpdateRule> rule_;
  std::vector<std::vector<float>> params_;
  ShardState shard_;
  PageSweep sweep_;
};

// After some steps. `prefetch`: pages come before the next sweep begins, as behind a backward pass.
std::vector<float> numbers_after_steps(const Way& way, bool prefetch = true) {
  Bench bench(way);
  for (int step = 1; step <= kSteps; ++step) {
    if (prefetch) {
      bench.sweep().prefetch();
      bench.sweep().prefetch();  // a skipped step: once is enough
    }
    bench.update_all(step);
  }
  return bench.numbers();
}

PagingOptions paged(std::size_t page_bytes, int buffers = 3) {
  return {.page_bytes = page_bytes, .buffers = buffers, .page_all = true};
}

// Of 12 KiB a page of AdamW has 1024 elements, the least; of 36 KiB 3072, so that the last page of
// a unit is shorter; of a GiB a unit is one page.
std::vector<Way> ways_of(OptimizerKind optimizer) {
  return {{"pages of 1024", optimizer, paged(12 * kKiB)},
          {"two buffers", optimizer, paged(12 * kKiB, 2)},
          {"ragged pages", optimizer, paged(36 * kKiB)},
          {"more buffers than pages", optimizer, paged(36 * kKiB, 64)},
          {"a page a unit", optimizer, paged(kKiB * kKiB * kKiB)},
          {"half resident", optimizer, {.page_bytes = 12 * kKiB, .max_device_bytes = 600 * kKiB}},
          {"gradients on the host", optimizer, paged(36 * kKiB), kAllGrads},
          {"some gradients on the host", optimizer, paged(36 * kKiB), 1},
          {"resident, most gradients on the host", optimizer, {}, 800 * kKiB},
          {"resident, gradients on the host", optimizer, {}, kAllGrads}};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(page_sweep)

BOOST_AUTO_TEST_CASE(the_bits_are_those_of_resident_state_in_every_order_of_the_streams) {
  for (const OptimizerKind optimizer : {OptimizerKind::adamw, OptimizerKind::sgd}) {
    const std::vector<float> expected =
        numbers_after_steps({"resident", optimizer, {}}, /*prefetch=*/false);
    for (const Way& way : ways_of(optimizer)) {
      for (std::uint64_t order = 0; order < kOrders; ++order) {
        const cpu::DeferredMode deferred(order);
        BOOST_TEST((numbers_after_steps(way, order % 2 == 0) == expected),
                   way.name << ", " << optimizer_name(optimizer) << ", order " << order);
      }
    }
  }
}

// Packed masters beside parameters of bf16 values: the numbers of whole ones.
BOOST_AUTO_TEST_CASE(packed_masters_give_the_bits_of_whole_ones_in_every_order_of_the_streams) {
  for (const OptimizerKind optimizer : {OptimizerKind::adamw, OptimizerKind::sgd}) {
    const Way whole = {.name = "whole", .optimizer = optimizer, .param_values = DType::bf16};
    const std::vector<float> expected = numbers_after_steps(whole, /*prefetch=*/false);
    std::vector<Way> ways = ways_of(optimizer);
    ways.push_back({"resident", optimizer});
    for (Way& way : ways) {
      way.param_values = DType::bf16;
      way.packs_masters = true;
      for (std::uint64_t order = 0; order < kFewOrders; ++order) {
        const cpu::DeferredMode deferred(order);
        BOOST_TEST((numbers_after_steps(way, order % 2 == 0) == expected),
                   way.name << ", " << optimizer_name(optimizer) << ", order " << order);
      }
    }
  }
}

// Moments in fewer bits: bit-identical however they are cut into pages.
BOOST_AUTO_TEST_CASE(rounded_moments_have_the_same_bits_in_pages_of_any_size) {
  for (const MomentType moments : {MomentType::bf16, MomentType::bits8}) {
    const std::vector<float> expected =
        numbers_after_steps({.name = "resident", .moments = moments}, /*prefetch=*/false);
    BOOST_TEST((expected != numbers_after_steps({.name = "f32"}, /*prefetch=*/false)));
    for (Way way : ways_of(OptimizerKind::adamw)) {
      way.moments = moments;
      for (std::uint64_t order = 0; order < kFewOrders; ++order) {
        const cpu::DeferredMode deferred(order);
        BOOST_TEST((numbers_after_steps(way, order % 2 == 0) == expected),
                   way.name << ", " << moment_name(moments) << ", order " << order);
      }
    }
  }
}

// The case above finds an event that is missing: without one of them some order gives other bits.
BOOST_AUTO_TEST_CASE(each_event_is_needed) {
  const std::vector<float> expected = numbers_after_steps({"resident"}, /*prefetch=*/false);
  const auto found_without = [&](const char* event, const Way& way) {
    for (std::uint64_t order = 0; order < 4 * kOrders; ++order) {
      cpu::DeferredMode deferred(order);
      deferred.ignore_waits_on(event);
      if (numbers_after_steps(way) != expected) {
        return true;
      }
    }
    return false;
  };
  const Way way = {"two buffers", OptimizerKind::adamw, paged(12 * kKiB, 2)};
  for (const char* event : {"page.loaded", "page.updated", "page.stored"}) {
    BOOST_TEST(found_without(event, way), event);
  }
  // Resident, as page.stored keeps the buffers of paged ones apart.
  const Way on_host = {"gradients on the host",
                       OptimizerKind::adamw,
                       {.page_bytes = 12 * kKiB, .buffers = 2},
                       kAllGrads};
  for (const char* event : {"update grad.loaded", "update grad.used"}) {
    BOOST_TEST(found_without(event, on_host), event);
  }
}

BOOST_AUTO_TEST_CASE(what_is_not_resident_moves_once_each_way) {
  for (const Way& way : ways_of(OptimizerKind::adamw)) {
    BOOST_TEST_CONTEXT(way.name) {
      Bench bench(way);
      BOOST_TEST(bench.sweep().report().bytes_in == 0U);
      for (int step = 1; step <= 2; ++step) {
        bench.update_all(step);
        const std::size_t moving = bench.shard().state_bytes() - bench.shard().resident_bytes();
        const PagingReport report = bench.sweep().report();
        BOOST_TEST(report.bytes_in == moving);
        BOOST_TEST(report.bytes_out == moving);
        BOOST_TEST(report.pages == std::ssize(bench.shard().pages()));
        BOOST_TEST((way.paging.max_device_bytes == 0 ||
                    report.device_bytes <= way.paging.max_device_bytes));
      }
      bench.write_all();
      BOOST_TEST(bench.sweep().report().bytes_out == 0U);
    }
  }
}

BOOST_AUTO_TEST_CASE(parameters_are_written_from_master_weights_that_stay) {
  for (const Way& way : ways_of(OptimizerKind::adamw)) {
    BOOST_TEST_CONTEXT(way.name) {
      Bench bench(way);
      bench.write_all();
      for (UnitId unit = 0; unit < bench.units(); ++unit) {
        const TensorView params = bench.params(unit);
        std::vector<float> master(static_cast<std::size_t>(params.count()));
        bench.shard().read(unit, StateArray::master, 0,
                           {master.data(), DType::f32, params.shape, Device{}});
        const auto* written = data_as<float>(params);
        BOOST_TEST((std::vector<float>(written, written + params.count()) == master));
      }
      const std::vector<float> before = bench.numbers();
      bench.write_all();
      BOOST_TEST((bench.numbers() == before));
    }
  }
}

BOOST_AUTO_TEST_CASE(each_page_is_reported_before_its_update_in_the_order_of_a_sweep) {
  Bench bench({"half resident",
               OptimizerKind::adamw,
               {.page_bytes = 12 * kKiB, .max_device_bytes = 600 * kKiB}});
  BOOST_TEST_REQUIRE(bench.sweep().report().resident_pages > 0);
  BOOST_TEST_REQUIRE(bench.sweep().report().resident_pages < bench.sweep().report().pages);
  const auto content = [](const StatePage& page) {
    const auto* bytes = data_as<std::uint8_t>(page.state);
    return std::vector<std::uint8_t>(bytes, bytes + page.state.count());
  };
  std::vector<std::vector<std::uint8_t>> before;
  for (const StatePage& page : bench.shard().pages()) {
    before.push_back(content(page));
  }
  std::vector<const StatePage*> seen;
  bench.sweep().set_before_change([&](const StatePage& page) {
    BOOST_TEST((content(page) == before.at(seen.size())));
    seen.push_back(&page);
  });
  bench.write_all();
  BOOST_TEST(seen.empty());
  bench.update_all(1);
  BOOST_TEST_REQUIRE(std::ssize(seen) == std::ssize(bench.shard().pages()));
  for (std::size_t i = 0; i < seen.size(); ++i) {
    BOOST_TEST(seen[i] == &bench.shard().pages()[i]);
    BOOST_TEST((content(*seen[i]) != before[i]));
  }
}

BOOST_AUTO_TEST_CASE(a_sweep_within_another_and_units_out_of_order_are_refused) {
  Bench bench({"pages of 1024", OptimizerKind::adamw, paged(12 * kKiB)});
  const UpdateStep step = {.updates = 1, .lr = 0.01, .grad_scale = 1};
  bench.sweep().begin_sweep();
  BOOST_CHECK_THROW(bench.sweep().update(1, step, bench.params(1)), ContractError);
  BOOST_CHECK_THROW(bench.sweep().begin_sweep(), ContractError);
  bench.sweep().update(0, step, bench.params(0));
  BOOST_CHECK_THROW(bench.sweep().update(0, step, bench.params(0)), ContractError);
  BOOST_CHECK_THROW(bench.sweep().begin_sweep(), ContractError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
