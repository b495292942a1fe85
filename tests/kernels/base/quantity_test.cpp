#include "kernels/base/quantity.h"

#include "kernels/base/error.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

BOOST_AUTO_TEST_SUITE(quantity)

BOOST_AUTO_TEST_CASE(sizes_have_suffixes_of_powers_of_1000_and_of_1024) {
  const SizeRange range{1, kMostBytes};
  BOOST_TEST(parse_bytes("40GB", range, "--device-memory") == 40'000'000'000U);
  BOOST_TEST(parse_bytes("1.5kB", range, "--device-memory") == 1500U);
  BOOST_TEST(parse_bytes("64MiB", range, "--device-memory") == std::size_t{64} << 20U);
  BOOST_TEST(parse_bytes("1PiB", range, "--device-memory") == kMostBytes);
}

BOOST_AUTO_TEST_CASE(a_size_of_another_form_is_refused_with_the_suffixes_there_are) {
  for (const char* text : {"40G", "40gb", "40 GB", "", "GB", "-1GB", "2PiB", "0"}) {
    BOOST_CHECK_EXCEPTION(
        static_cast<void>(parse_bytes(text, {1, kMostBytes}, "--device-memory")), ConfigError,
        [&](const ConfigError& error) {
          return error.message() ==
                 "--device-memory '" + std::string(text) +
                     "' is not a size in bytes from 1 to 1PiB: give a number and B, kB, MB, GB, TB "
                     "(powers of 1000) or KiB, MiB, GiB, TiB, PiB (powers of 1024), such as 64MiB "
                     "or 5GB";
        });
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
