#include "kernels/base/parallel.h"

#include <atomic>
#include <stdexcept>
#include <vector>

#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

// What some libraries leave behind.
void dirty_upper_vector_registers() {
#if defined(__x86_64__)
  if (upper_vector_registers_in_use()) {
    asm volatile("vpcmpeqd %%ymm0, %%ymm0, %%ymm0" ::: "xmm0");
  }
#endif
}

}  // namespace

BOOST_AUTO_TEST_SUITE(parallel)

BOOST_AUTO_TEST_CASE(each_index_goes_to_one_worker) {
  for (const Index threads : {1, 2, 5, 40}) {
    std::vector<std::atomic<int>> calls(33);
    share_among_threads(std::ssize(calls), threads,
                        [&] { return [&](Index i) { ++calls[static_cast<std::size_t>(i)]; }; });
    for (const std::atomic<int>& count : calls) {
      BOOST_TEST(count == 1);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_first_exception_ends_the_others_work) {
  std::atomic<int> calls = 0;
  BOOST_CHECK_THROW(share_among_threads(1'000'000, 3,
                                        [&] {
                                          return [&](Index i) {
                                            ++calls;
                                            if (i >= 5) {
                                              throw std::runtime_error("sixth");
                                            }
                                          };
                                        }),
                    std::runtime_error);
  BOOST_TEST(calls < 1'000'000);
}

BOOST_AUTO_TEST_CASE(calls_begin_with_clean_vector_registers) {
  if (!upper_vector_registers_in_use()) {
    BOOST_TEST_MESSAGE("this processor does not tell");
    return;
  }
  dirty_upper_vector_registers();
  BOOST_TEST(*upper_vector_registers_in_use());
  std::atomic<int> dirty = 0;
  share_among_threads(64, 4, [&] {
    return [&](Index /*i*/) {
      dirty += *upper_vector_registers_in_use() ? 1 : 0;
      dirty_upper_vector_registers();
    };
  });
  BOOST_TEST(dirty == 0);
  clear_upper_vector_registers();
  BOOST_TEST(!*upper_vector_registers_in_use());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
