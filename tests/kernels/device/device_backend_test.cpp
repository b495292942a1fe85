// Memory, streams and events of either backend.
#include "kernels/device/device_backend.h"

#include <algorithm>
#include <string>

#include "kernels/base/error.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

// Large enough for CUDA's second way to pin memory (64 MiB and more), and no multiple of a page.
constexpr Index kLarge = (Index{66} << 20U) + 13;
constexpr Index kSmall = 1021;

constexpr MemoryKind kKinds[] = {MemoryKind::host, MemoryKind::pinned, MemoryKind::device};

DeviceBuffer bytes_of(Index count, MemoryKind kind) {
  return {test_device(), kind, DType::u8, Shape{count}, "test/bytes"};
}

// Another number for each place modulo a prime, so that a shifted copy differs.
void fill_with_pattern(const TensorView& host) {
  constexpr Index kPeriod = 251;
  auto* bytes = data_as<std::uint8_t>(host);
  for (Index i = 0; i < host.count(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(i % kPeriod);
  }
}

bool same_bytes(const ConstTensorView& a, const ConstTensorView& b) {
  const auto* first = data_as<std::uint8_t>(a);
  return std::equal(first, first + a.count(), data_as<std::uint8_t>(b));
}

bool all_bytes_are(std::uint8_t value, const ConstTensorView& host) {
  const auto* first = data_as<std::uint8_t>(host);
  return std::all_of(first, first + host.count(), [=](std::uint8_t byte) { return byte == value; });
}

}  // namespace

BOOST_AUTO_TEST_SUITE(device_backend)

BOOST_AUTO_TEST_CASE(bytes_come_back_through_any_two_kinds_of_memory) {
  Stream stream(test_device(), StreamPriority::normal, "copy");
  for (const Index count : {Index{1}, kSmall, kLarge}) {
    DeviceBuffer start = bytes_of(count, MemoryKind::host);
    fill_with_pattern(start.view());
    for (const MemoryKind first : kKinds) {
      for (const MemoryKind second : kKinds) {
        DeviceBuffer a = bytes_of(count, first);
        DeviceBuffer b = bytes_of(count, second);
        DeviceBuffer end = bytes_of(count, MemoryKind::host);
        copy_async(start.view(), a.view(), stream);
        copy_async(a.view(), b.view(), stream);
        copy_async(b.view(), end.view(), stream);
        stream.synchronize();
        BOOST_CHECK(same_bytes(end.view(), start.view()));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(every_kind_of_memory_can_be_filled) {
  Stream stream(test_device(), StreamPriority::high, "fill");
  for (const Index count : {kSmall, kLarge}) {
    for (const MemoryKind kind : kKinds) {
      DeviceBuffer buffer = bytes_of(count, kind);
      DeviceBuffer host = bytes_of(count, MemoryKind::host);
      poison_async(buffer.view(), stream);
      copy_async(buffer.view(), host.view(), stream);
      stream.synchronize();
      BOOST_CHECK(all_bytes_are(0xFF, host.view()));
      zero_async(buffer.view(), stream);
      copy_async(buffer.view(), host.view(), stream);
      stream.synchronize();
      BOOST_CHECK(all_bytes_are(0, host.view()));
    }
  }
}

BOOST_AUTO_TEST_CASE(memory_is_aligned) {
  for (const MemoryKind kind : kKinds) {
    for (const Index count : {Index{1}, kSmall, kLarge}) {
      DeviceBuffer buffer = bytes_of(count, kind);
      BOOST_CHECK_EQUAL(
          reinterpret_cast<std::uintptr_t>(buffer.view().data) % DeviceBuffer::kAlignment, 0U);
    }
  }
}

BOOST_AUTO_TEST_CASE(work_after_a_wait_sees_work_before_the_mark) {
  Stream first(test_device(), StreamPriority::normal, "first");
  Stream second(test_device(), StreamPriority::high, "second");
  DeviceBuffer start = bytes_of(kLarge, MemoryKind::pinned);
  fill_with_pattern(start.view());
  DeviceBuffer device = bytes_of(kLarge, MemoryKind::device);
  DeviceBuffer end = bytes_of(kLarge, MemoryKind::pinned);
  zero_async(device.view(), first);
  copy_async(start.view(), device.view(), first);
  Event filled(test_device(), "test.filled");
  filled.record(first);
  second.wait(filled);
  copy_async(device.view(), end.view(), second);
  second.synchronize();
  BOOST_CHECK(filled.is_complete());
  BOOST_CHECK(same_bytes(end.view(), start.view()));
}

BOOST_AUTO_TEST_CASE(events_tell_the_time_between_them) {
  Stream stream(test_device(), StreamPriority::normal, "timed");
  DeviceBuffer from = bytes_of(kLarge, MemoryKind::device);
  DeviceBuffer to = bytes_of(kLarge, MemoryKind::device);
  Event start(test_device(), "test.start");
  Event end(test_device(), "test.end");
  BOOST_CHECK(end.is_complete());  // never recorded: nothing to wait for
  start.record(stream);
  copy_async(from.view(), to.view(), stream);
  end.record(stream);
  end.synchronize();
  const double seconds = end.seconds_since(start);
  constexpr double kSlowest = 10;
  BOOST_CHECK_GT(seconds, 0);
  BOOST_CHECK_LT(seconds, kSlowest);
}

BOOST_AUTO_TEST_CASE(an_allocation_that_does_not_fit_names_what_was_wanted) {
  constexpr Index kAbsurd = Index{1} << 50U;
  for (const MemoryKind kind : kKinds) {
    BOOST_CHECK_EXCEPTION(bytes_of(kAbsurd, kind), DeviceError, [](const DeviceError& error) {
      return error.message().find("test/bytes") != std::string::npos &&
             error.message().find(std::to_string(kAbsurd)) != std::string::npos;
    });
  }
  // and the device continues
  Stream stream(test_device(), StreamPriority::normal, "after");
  DeviceBuffer buffer = bytes_of(kSmall, MemoryKind::device);
  zero_async(buffer.view(), stream);
  stream.synchronize();
}

BOOST_AUTO_TEST_CASE(a_device_is_described_and_a_missing_one_refused) {
  BOOST_CHECK_GT(device_count(test_device().kind), 0);
  const DeviceInfo info = device_info(test_device());
  BOOST_CHECK(!info.name.empty());
  BOOST_CHECK_GT(info.free_bytes, 0U);
  BOOST_CHECK_LE(info.free_bytes, info.total_bytes);
  if (test_device().kind == DeviceKind::cuda) {
    BOOST_CHECK_GT(info.multiprocessors, 0);
    constexpr int kNoSuchDevice = 1000;
    BOOST_CHECK_THROW(use_device({DeviceKind::cuda, kNoSuchDevice}), ConfigError);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
