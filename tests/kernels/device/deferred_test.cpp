// The deferred mode itself: it must find a missing event, and must not find one that is there.
#include "kernels/device/cpu/deferred.h"

#include <set>

#include "kernels/base/error.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

constexpr Index kCount = 64;
constexpr std::uint64_t kSeeds = 40;

std::vector<double> constants(double value) {
  std::vector<double> values(static_cast<std::size_t>(kCount), value);
  return values;
}

// One stream copies `source` to `middle`, the other `middle` to the result; the second waits for
// the first's event "copied". Returns the result.
std::vector<double> two_copies(cpu::DeferredMode* mode, const char* ignored) {
  TestBench bench(test_device());
  if (mode != nullptr && ignored != nullptr) {
    mode->ignore_waits_on(ignored);
  }
  TestTensor source = bench.of(constants(1), DType::f32, {kCount});
  TestTensor middle = bench.of(constants(2), DType::f32, {kCount});
  TestTensor result = bench.of(constants(3), DType::f32, {kCount});
  Stream first(test_device(), StreamPriority::normal, "first");
  Stream second(test_device(), StreamPriority::normal, "second");
  Event copied(test_device(), "copied");
  copy_async(source.view(), middle.view(), first);
  copied.record(first);
  second.wait(copied);
  copy_async(middle.view(), result.view(), second);
  second.synchronize();
  first.synchronize();
  return bench.read(result.view());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(deferred)

BOOST_AUTO_TEST_CASE(an_event_orders_two_streams_in_every_order_tried) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    cpu::DeferredMode mode(seed);
    check_equal(two_copies(&mode, nullptr), constants(1), "result");
    BOOST_CHECK(mode.waited_names() == std::vector<std::string>{"copied"});
  }
}

BOOST_AUTO_TEST_CASE(an_event_let_go_before_its_work_has_run_still_orders_it) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const cpu::DeferredMode mode(seed);
    TestBench bench(test_device());
    TestTensor source = bench.of(constants(1), DType::f32, {kCount});
    TestTensor middle = bench.of(constants(2), DType::f32, {kCount});
    TestTensor result = bench.of(constants(3), DType::f32, {kCount});
    Stream first(test_device(), StreamPriority::normal, "first");
    Stream second(test_device(), StreamPriority::normal, "second");
    copy_async(source.view(), middle.view(), first);
    {
      Event copied(test_device(), "copied");
      copied.record(first);
      second.wait(copied);
    }
    copy_async(middle.view(), result.view(), second);
    second.synchronize();
    first.synchronize();
    check_equal(bench.read(result.view()), constants(1), "result");
  }
}

BOOST_AUTO_TEST_CASE(without_the_event_some_order_gives_another_result) {
  std::set<double> results;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    cpu::DeferredMode mode(seed);
    results.insert(two_copies(&mode, "copied").front());
  }
  BOOST_CHECK(results == (std::set<double>{1, 2}));
}

BOOST_AUTO_TEST_CASE(without_the_mode_work_runs_at_once) {
  check_equal(two_copies(nullptr, nullptr), constants(1), "result");
  Stream stream(test_device(), StreamPriority::normal, "at once");
  BOOST_CHECK(stream.handle() == nullptr);
  Event event(test_device(), "mark");
  BOOST_CHECK(event.is_complete());
  event.record(stream);
  BOOST_CHECK(event.is_complete());
}

BOOST_AUTO_TEST_CASE(nothing_runs_before_someone_waits) {
  cpu::DeferredMode mode(kSeed);
  Stream stream(test_device(), StreamPriority::normal, "late");
  DeviceBuffer buffer(test_device(), MemoryKind::host, DType::u8, {1}, "byte");
  auto* byte = data_as<std::uint8_t>(buffer.view());
  *byte = 7;
  Event event(test_device(), "zeroed");
  zero_async(buffer.view(), stream);
  event.record(stream);
  BOOST_CHECK(!event.is_complete());
  BOOST_CHECK_EQUAL(*byte, 7);
  event.synchronize();
  BOOST_CHECK(event.is_complete());
  BOOST_CHECK_EQUAL(*byte, 0);
}

BOOST_AUTO_TEST_CASE(a_wait_holds_for_the_mark_of_its_time_only) {
  cpu::DeferredMode mode(kSeed);
  Stream first(test_device(), StreamPriority::normal, "first");
  Stream second(test_device(), StreamPriority::normal, "second");
  Event event(test_device(), "mark");
  event.record(first);
  second.wait(event);
  event.record(second);  // the mark moves behind the wait for it
  second.synchronize();  // would wait for itself, if the wait had moved too
  BOOST_CHECK(event.is_complete());
}

BOOST_AUTO_TEST_CASE(one_mode_at_a_time) {
  const cpu::DeferredMode mode(kSeed);
  BOOST_CHECK_THROW(cpu::DeferredMode(kSeed + 1), ContractError);
}

BOOST_AUTO_TEST_CASE(run_all_deferred_empties_every_stream) {
  cpu::DeferredMode mode(kSeed);
  TestBench bench(test_device());
  TestTensor tensor = bench.of(constants(1), DType::f32, {kCount});
  Stream other(test_device(), StreamPriority::normal, "other");
  Event done(test_device(), "done");
  zero_async(tensor.view(), other);
  done.record(other);
  cpu::run_all_deferred();
  BOOST_CHECK(done.is_complete());
}

BOOST_AUTO_TEST_CASE(kernels_queue_a_copy_of_their_arguments) {
  cpu::DeferredMode mode(kSeed);
  TestBench bench(test_device());
  TestTensor x = bench.of(constants(2), DType::f32, {1, kCount});
  TestTensor sum = bench.poisoned(DType::f32, {kCount});
  {
    const AccumulateArgs args = {.slices = x.view(),
                                 .sum = sum.view(),
                                 .partial = {},
                                 .first = 0,
                                 .count = 1,
                                 .total = 1,
                                 .reduce_group = 1};
    bench.kernels().accumulate(args, bench.stream());
  }
  check_equal(bench.read(sum.view()), constants(2), "sum");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
