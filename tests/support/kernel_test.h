// For the one source file of a kernel test: Boost.Test, the device under test, and the end of the
// program with status 77 where that device is missing.
#pragma once

#include <boost/test/unit_test.hpp>

#include "tests/support/check.h"
#include "tests/support/test_bench.h"

namespace tessera::test {

/// The device that this binary tests (tests/AddTest.cmake).
[[nodiscard]] inline Device test_device() {
  return {TESSERA_TEST_DEVICE, 0};
}

struct DeviceIsPresent {
  DeviceIsPresent() { skip_without(TESSERA_TEST_DEVICE); }
};
BOOST_TEST_GLOBAL_FIXTURE(DeviceIsPresent);

}  // namespace tessera::test
