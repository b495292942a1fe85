#include "kernels/device/arena.h"

#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

// What a constructor does with the arena it is given.
std::vector<DeviceBuffer> build(Arena& arena) {
  std::vector<DeviceBuffer> buffers;
  buffers.push_back(arena.allocate(MemoryKind::device, DType::f32, {10, 3}, "parts/a"));
  buffers.push_back(arena.allocate(MemoryKind::pinned, DType::bf16, {7}, "parts/b"));
  buffers.push_back(arena.allocate(MemoryKind::device, DType::i64, {0}, "nothing"));
  arena.note(MemoryKind::device, 1000, "library");
  return buffers;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(arena)

BOOST_AUTO_TEST_CASE(a_dry_run_plans_what_a_run_allocates) {
  Arena dry(test_device(), ArenaMode::dry_run);
  Arena real(test_device(), ArenaMode::allocate);
  std::vector<DeviceBuffer> planned = build(dry);
  std::vector<DeviceBuffer> allocated = build(real);
  BOOST_REQUIRE_EQUAL(dry.entries().size(), real.entries().size());
  for (std::size_t i = 0; i < dry.entries().size(); ++i) {
    BOOST_CHECK_EQUAL(dry.entries()[i].name, real.entries()[i].name);
    BOOST_CHECK_EQUAL(dry.entries()[i].bytes, real.entries()[i].bytes);
    BOOST_CHECK(dry.entries()[i].kind == real.entries()[i].kind);
  }
  BOOST_CHECK(planned[0].view().data == nullptr);
  BOOST_CHECK(allocated[0].view().data != nullptr);
  BOOST_CHECK(planned[0].view().shape == allocated[0].view().shape);
  BOOST_CHECK_EQUAL(real.total_bytes(MemoryKind::device), 10U * 3U * 4U + 1000U);
  BOOST_CHECK_EQUAL(real.total_bytes(MemoryKind::pinned), 7U * 2U);
  BOOST_CHECK_EQUAL(real.total_bytes(MemoryKind::host), 0U);
}

BOOST_AUTO_TEST_CASE(no_elements_need_no_memory) {
  Arena real(test_device(), ArenaMode::allocate);
  const std::vector<DeviceBuffer> allocated = build(real);
  BOOST_CHECK(allocated[2].view().data == nullptr);
  BOOST_CHECK(allocated[2].empty());
}

BOOST_AUTO_TEST_CASE(a_frozen_arena_refuses_by_name) {
  Arena real(test_device(), ArenaMode::allocate);
  real.freeze();
  BOOST_CHECK_EXCEPTION((void)real.allocate(MemoryKind::device, DType::f32, {1}, "late"),
                        ContractError, [](const ContractError& error) {
                          return error.message().find("'late'") != std::string::npos;
                        });
}

BOOST_AUTO_TEST_CASE(a_moved_buffer_leaves_nothing_behind) {
  std::vector<DeviceBuffer> buffers;
  buffers.reserve(2);
  buffers.emplace_back(test_device(), MemoryKind::host, DType::f32, Shape{8}, "first");
  const void* data = buffers[0].view().data;
  buffers.push_back(std::move(buffers[0]));
  BOOST_CHECK(buffers[1].view().data == data);
  BOOST_CHECK(buffers[0].empty());
  BOOST_CHECK(buffers[0].view().data == nullptr);
  buffers[0] = DeviceBuffer(test_device(), MemoryKind::host, DType::f32, {2}, "another");
  buffers[0] = std::move(buffers[1]);
  BOOST_CHECK(buffers[0].view().data == data);
  BOOST_CHECK_EQUAL(buffers[0].size_bytes(), 32U);
  BOOST_CHECK(buffers[1].view().data == nullptr);
}

BOOST_AUTO_TEST_CASE(a_copy_between_unlike_tensors_is_refused) {
  TestBench bench(test_device());
  TestTensor a = bench.poisoned(DType::f32, {8});
  TestTensor b = bench.poisoned(DType::f32, {7});
  TestTensor c = bench.poisoned(DType::i32, {8});
  BOOST_CHECK_THROW(copy_async(a.view(), b.view(), bench.stream()), ContractError);
  BOOST_CHECK_THROW(copy_async(a.view(), c.view(), bench.stream()), ContractError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
