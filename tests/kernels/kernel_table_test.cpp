#include "kernels/kernel_table.h"

#include <array>
#include <cstring>

#include "tests/support/kernel_test.h"

namespace tessera::test {

BOOST_AUTO_TEST_SUITE(kernel_table)

BOOST_AUTO_TEST_CASE(no_entry_is_null) {
  const KernelTable& table = tessera::kernel_table(test_device().kind);
  static_assert(sizeof(KernelTable) % sizeof(void*) == 0);
  std::array<void*, sizeof(KernelTable) / sizeof(void*)> entries{};
  std::memcpy(entries.data(), &table, sizeof table);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    BOOST_CHECK_MESSAGE(entries[i] != nullptr, "entry " << i << " is null");
  }
}

BOOST_AUTO_TEST_CASE(the_table_lives_as_long_as_the_program) {
  BOOST_CHECK_EQUAL(&tessera::kernel_table(test_device().kind),
                    &tessera::kernel_table(test_device().kind));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
