// Nothing is allocated after warm-up: not from the heap by the thread that steps, not from the CUDA
// driver by anybody; beside paging, saves and evaluations.
#define BOOST_TEST_MODULE allocations
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <thread>

#include <boost/test/unit_test.hpp>

#include "collectives/mpi_session.h"
#include "kernels/device/device_backend.h"
#include "kernels/device/device_buffer.h"
#include "runtime/run/page_snapshot.h"
#include "tests/support/run/driver_allocations.h"
#include "tests/support/run/small_run.h"
#include "tests/support/test_bench.h"
#include "tests/support/test_session.h"

// Counts what the thread that steps takes from the heap. What replaces operator new cannot but use
// malloc.
// NOLINTBEGIN(*-no-malloc,*-owning-memory,*-avoid-non-const-global-variables)
namespace {

thread_local bool counting = false;
thread_local std::int64_t allocations = 0;

void* counted_or_null(std::size_t bytes) noexcept {
  if (counting) {
    ++allocations;
  }
  return std::malloc(bytes == 0 ? 1 : bytes);
}

void* counted(std::size_t bytes) {
  if (void* data = counted_or_null(bytes); data != nullptr) {
    return data;
  }
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) {
  return counted(bytes);
}
void* operator new[](std::size_t bytes) {
  return counted(bytes);
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted_or_null(bytes);
}
void operator delete(void* data) noexcept {
  std::free(data);
}
void operator delete[](void* data) noexcept {
  std::free(data);
}
void operator delete(void* data, std::size_t) noexcept {
  std::free(data);
}
void operator delete[](void* data, std::size_t) noexcept {
  std::free(data);
}
// NOLINTEND(*-no-malloc,*-owning-memory,*-avoid-non-const-global-variables)

namespace tessera::test {
namespace {

constexpr int kWarmUp = 2;
constexpr int kSteps = 4;  // that are counted
constexpr std::size_t kSmallPage = std::size_t{12} << 10U;

struct DeviceIsPresent {
  DeviceIsPresent() { skip_without(TESSERA_TEST_DEVICE); }
};
BOOST_TEST_GLOBAL_FIXTURE(DeviceIsPresent);

struct Counts {
  std::int64_t heap = 0;    // of the thread that steps
  std::int64_t driver = 0;  // of the process; 0 where it is not counted
};

// How a run differs from the plain one.
struct Mode {
  const char* recompute = "none";
  std::optional<ParamPlacement> shards = std::nullopt;  // parameters in shards, stored there
  std::optional<CodeStorage> codes = std::nullopt;      // of 8 bits
  bool in_groups = false;                               // both passes, three at a time
  std::optional<AdapterSettings> adapters = std::nullopt;
};

// Steps, evaluations and snapshots in turn. `disturb` runs inside what is counted.
Counts count_allocations(const std::function<void()>& disturb, std::string& uncounted,
                         const Mode& mode = {}) {
  SmallRunOptions options = small_options(!mode.in_groups);
  options.settings.adapters = mode.adapters;
  if (mode.shards) {
    options.config.num_layers = 5;
    options.settings.zero = ZeroStage::three;
    options.settings.params = *mode.shards;
  }
  if (mode.codes) {
    options.settings.scratch.precision =
        quantized(precision_of(TESSERA_TEST_DEVICE == DeviceKind::cuda ? DType::bf16 : DType::f32),
                  QuantizationRecipe::tensor, {});
    options.settings.scratch.fp8_weights = *mode.codes;
  }
  options.settings.trainer.batched_forward = mode.in_groups ? 3 : 1;
  options.settings.trainer.batched_backward = mode.in_groups;
  options.settings.scratch.recompute = parse_recompute(mode.recompute, "--recompute");
  options.device = own_device();
  options.settings.paging = {
      .page_bytes = kSmallPage, .max_device_bytes = 0, .buffers = 3, .page_all = true};
  const auto comm = make_communicator(session(), options.device);
  const TrainerOptions& trainer = options.settings.trainer;
  const MemoryBatchesOptions data = batches_of(options, *comm);
  MemoryBatches batches(data);
  MemoryBatches held_out(data);
  held_out.prefetch(0);
  (void)held_out.prefetched_targets();
  held_out.take();
  Arena arena(options.device, ArenaMode::allocate);
  TrainingRun run(options.config, options.settings, *comm, batches, arena);
  PageSnapshot snapshot(run.shard(), run.optimizer(), 4 * kSmallPage, arena);
  run.initialize_weights();
  run.trainer().gather_parameters();
  arena.freeze();

  const DriverAllocations driver;
  uncounted = driver.why_not();
  const auto batch_of = [&](Index i) { return held_out.batch(i / comm->world_size()); };
  Counts counts;
  for (int step = 0; step < kWarmUp + kSteps; ++step) {
    run.trainer().synchronize();
    const std::int64_t driver_before = driver.count();
    snapshot.begin();
    std::thread writer([&] { snapshot.take_all([](const StatePage&, const PageContents&) {}); });
    allocations = 0;
    counting = true;
    (void)run.trainer().step();
    (void)run.trainer().evaluate(trainer.global_batch / trainer.micro_batch, batch_of);
    if (disturb) {
      disturb();
    }
    counting = false;
    writer.join();
    if (step >= kWarmUp) {
      counts.heap += allocations;
      counts.driver += driver.count() - driver_before;
    }
  }
  return counts;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(allocations_of_a_step)

BOOST_AUTO_TEST_CASE(nothing_is_allocated_after_warm_up_beside_saves_and_evaluations) {
  constexpr ParamPlacement kHost = ParamPlacement::host;
  const AdapterSettings adapters = {.config = {.rank = 4,
                                               .alpha = 8,
                                               .rank_stabilized = false,
                                               .targets = parse_projections("all", ""),
                                               .trains_embeddings = false}};
  AdapterSettings nf4 = adapters;
  nf4.base = BaseStorage::nf4;
  for (const Mode& mode :
       {Mode{}, Mode{.recompute = "block:1,mlp"}, Mode{.shards = ParamPlacement::device},
        Mode{.shards = kHost}, Mode{.codes = CodeStorage::at_use},
        Mode{.shards = kHost, .codes = CodeStorage::stored},
        Mode{.shards = kHost, .codes = CodeStorage::one_layout},
        Mode{.shards = kHost, .in_groups = true},
        Mode{.shards = ParamPlacement::device, .adapters = adapters},
        Mode{.shards = kHost, .in_groups = true, .adapters = adapters},
        Mode{.shards = kHost, .adapters = nf4}}) {
    std::string uncounted;
    const Counts counts = count_allocations({}, uncounted, mode);
    BOOST_CHECK_EQUAL(counts.heap, 0);
    BOOST_CHECK_EQUAL(counts.driver, 0);
  }
}

BOOST_AUTO_TEST_CASE(what_somebody_allocates_is_seen) {
  std::string uncounted;
  const Counts counts = count_allocations(
      [] {
        const DeviceBuffer device(this_device(), MemoryKind::device, DType::u8, {1 << 20},
                                  "a disturbance");
        const DeviceBuffer pinned(this_device(), MemoryKind::pinned, DType::u8, {1 << 12},
                                  "a disturbance");
        const std::string heap(64, 'x');  // longer than a string holds in itself
      },
      uncounted);
  BOOST_CHECK_GE(counts.heap, kSteps);
  if (TESSERA_TEST_DEVICE == DeviceKind::cuda && uncounted.empty()) {
    BOOST_CHECK_GE(counts.driver, 2 * kSteps);
  } else {
    BOOST_TEST_MESSAGE("the driver's allocations are not counted: " << uncounted);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
