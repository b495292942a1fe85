// A snapshot hands over the state as it was when it began, whatever sweeps do meanwhile, in every
// order in which writer and sweep can meet.
#include "runtime/run/page_snapshot.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"
#include "kernels/kernel_table.h"
#include "model/model_config.h"
#include "optim/adamw_rule.h"

namespace tessera {
namespace {

constexpr std::size_t kPageBytes = std::size_t{48} << 10U;
constexpr std::size_t kEverything = std::size_t{1} << 30U;

ModelConfig tiny_config() {
  ModelConfig config = preset("tiny");
  config.vocab_size = 61;
  config.num_layers = 1;
  return config;
}

// Parameters of one rank of two, each unit's.
std::vector<std::vector<float>> params_for(const ParamLayout& layout) {
  std::vector<std::vector<float>> params;
  for (const ParamUnit& unit : layout.units()) {
    params.emplace_back(static_cast<std::size_t>(padded_count(unit.count, 2) / 2));
  }
  return params;
}

enum class Masters : std::uint8_t { whole, packed };

OptimizerOptions optimizer_of(Masters masters) {
  OptimizerOptions options;
  options.param_values = DType::bf16;
  options.packs_masters = masters == Masters::packed;
  return options;
}

ShardStateOptions small_pages(bool page_all) {
  ShardStateOptions options;
  options.world_size = 2;
  options.paging.page_bytes = kPageBytes;
  options.paging.page_all = page_all;
  return options;
}

using Contents = std::vector<std::vector<std::uint8_t>>;  // of each page

std::vector<std::uint8_t> bytes_of(const PageContents& page) {
  const auto* state = data_as<std::uint8_t>(page.state);
  std::vector<std::uint8_t> bytes(state, state + page.state.count());
  const auto* params = static_cast<const std::uint8_t*>(page.params.data);
  if (params != nullptr) {
    bytes.insert(bytes.end(), params,
                 params + static_cast<Index>(sizeof(float)) * page.params.count());
  }
  return bytes;
}

// State whose numbers all differ, a sweep that changes them, and a snapshot of them.
struct Bench {
  explicit Bench(std::size_t staging_bytes, bool page_all = true, Masters masters = Masters::whole)
      : rule(kernel_table(DeviceKind::cpu), optimizer_of(masters)),
        shard(layout, shard_options(page_all), arena),
        optimizer(rule, shard, {stream, stream, stream}, arena),
        snapshot(shard, optimizer, staging_bytes, arena) {
    shard.initialize([](UnitId unit, Index begin, std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(Index{100'000} * unit + begin + static_cast<Index>(i));
      }
    });
    for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
      const TensorView grad = shard.grad(unit);
      std::fill_n(data_as<float>(grad), grad.count(), 1.0F);
    }
    sweep();  // moments that are not zeros
  }

  [[nodiscard]] TensorView params_of(UnitId unit) {
    std::vector<float>& values = params.at(static_cast<std::size_t>(unit));
    return {values.data(), DType::f32, Shape{std::ssize(values)}, Device{}};
  }
  [[nodiscard]] ShardStateOptions shard_options(bool page_all) {
    ShardStateOptions options = small_pages(page_all);
    options.layout = rule.layout();
    options.params = [this](UnitId unit) { return params_of(unit); };
    return options;
  }

  void sweep() {
    optimizer.begin_sweep();
    for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
      optimizer.update(unit, {.updates = 1, .lr = 0.5, .grad_scale = 1}, params_of(unit));
      optimizer.synchronize();
    }
  }

  [[nodiscard]] Contents contents() const {
    Contents all;
    for (const StatePage& page : shard.pages()) {
      all.push_back(bytes_of({page.state, shard.params_of(page)}));
    }
    return all;
  }

  // What the writer is given, each page after `before(number of the page)`.
  template <typename Before>
  Contents take_all(const Before& before) {
    Contents taken;
    snapshot.take_all([&](const StatePage& page, const PageContents& held) {
      before(taken.size());
      BOOST_REQUIRE(&page == &shard.pages()[taken.size()]);
      taken.push_back(bytes_of(held));
    });
    return taken;
  }
  Contents take_all() {
    return take_all([](std::size_t) {});
  }

  [[nodiscard]] Index pages() const { return std::ssize(shard.pages()); }

  ParamLayout layout{tiny_config()};
  Arena arena{Device{}, ArenaMode::allocate};
  Stream stream{Device{}, StreamPriority::normal, "test"};
  std::vector<std::vector<float>> params = params_for(layout);
  AdamWRule rule;
  ShardState shard;
  PageSweep optimizer;
  PageSnapshot snapshot;
};

// Whether it holds within some seconds: far more than it needs.
template <typename Condition>
bool comes_true(const Condition& condition) {
  constexpr int kTries = 2000;
  constexpr auto kInterval = std::chrono::milliseconds(10);
  for (int i = 0; i < kTries && !condition(); ++i) {
    std::this_thread::sleep_for(kInterval);
  }
  return condition();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(page_snapshot)

BOOST_AUTO_TEST_CASE(a_sweep_before_the_writer_stages_every_page_and_one_behind_it_none) {
  for (const auto& [page_all, masters] :
       {std::pair{true, Masters::whole}, std::pair{false, Masters::whole},
        std::pair{true, Masters::packed}, std::pair{false, Masters::packed}}) {
    Bench bench(kEverything, page_all, masters);
    BOOST_TEST_REQUIRE(bench.pages() > 4);
    const Contents expected = bench.contents();
    bench.snapshot.begin();
    bench.sweep();
    bench.sweep();  // a page is staged once
    BOOST_TEST((bench.contents() != expected));
    BOOST_TEST(bench.snapshot.report().staged_pages == bench.pages());
    BOOST_TEST((bench.take_all() == expected));

    const Contents later = bench.contents();
    bench.snapshot.begin();
    BOOST_TEST((bench.take_all() == later));
    bench.sweep();
    BOOST_TEST(bench.snapshot.report().staged_pages == 0);
    BOOST_TEST(bench.snapshot.report().stall_seconds == 0);
  }
}

BOOST_AUTO_TEST_CASE(with_staging_of_any_size_the_writer_sees_the_state_of_the_begin) {
  for (const std::size_t staging : {std::size_t{0}, kPageBytes, 3 * kPageBytes, kEverything}) {
    Bench bench(staging, true, staging == kEverything ? Masters::whole : Masters::packed);
    for (int round = 0; round < 5; ++round) {
      const Contents expected = bench.contents();
      bench.snapshot.begin();
      std::thread training([&] {
        bench.sweep();
        bench.sweep();
      });
      const Contents taken = bench.take_all([&](std::size_t page) {
        if (page % 3 == static_cast<std::size_t>(round % 3)) {
          std::this_thread::yield();
        }
      });
      training.join();
      BOOST_TEST((taken == expected), "staging " << staging << ", round " << round);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_sweep_that_meets_the_writer_does_not_follow_it_from_page_to_page) {
  Bench bench(kEverything);
  const Contents expected = bench.contents();
  bench.snapshot.begin();
  std::atomic<bool> writer_has_one = false;
  std::atomic<bool> sweep_is_done = false;
  std::thread training([&] {
    static_cast<void>(comes_true([&] { return writer_has_one.load(); }));
    bench.sweep();
    sweep_is_done = true;
  });
  const Contents taken = bench.take_all([&](std::size_t page) {
    if (page == 0) {  // the sweep waits for this one and stages the others
      writer_has_one = true;
      BOOST_TEST(
          comes_true([&] { return bench.snapshot.report().staged_pages == bench.pages() - 1; }));
    } else if (page == 1) {  // and then needs no other page of the writer
      BOOST_TEST(comes_true([&] { return sweep_is_done.load(); }));
    }
  });
  training.join();
  BOOST_TEST((taken == expected));
  BOOST_TEST(bench.snapshot.report().waiting_seconds > 0);
}

BOOST_AUTO_TEST_CASE(a_writer_that_fails_or_is_given_up_lets_training_go_on) {
  Bench bench(kPageBytes);
  bench.snapshot.begin();
  BOOST_CHECK_THROW(bench.snapshot.begin(), ContractError);
  BOOST_CHECK_THROW(bench.take_all([](std::size_t page) {
    if (page == 2) {
      throw std::runtime_error("the disk is full");
    }
  }),
                    std::runtime_error);
  bench.sweep();  // waits for nobody
  BOOST_TEST(bench.snapshot.report().staged_pages == 0);

  bench.snapshot.begin();
  std::thread training([&] { bench.sweep(); });  // one page is staged, the next one waits
  BOOST_TEST(comes_true([&] { return bench.snapshot.report().staged_pages == 1; }));
  bench.snapshot.abandon();
  training.join();
  BOOST_TEST(bench.take_all().empty());

  const Contents expected = bench.contents();
  bench.snapshot.begin();  // and the slot is free again
  std::thread again([&] { bench.sweep(); });
  BOOST_TEST((bench.take_all() == expected));
  again.join();
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera
