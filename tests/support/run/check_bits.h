// Runs of one rank, and their bits beside those of others.
#pragma once

#include <string>

#include <boost/test/unit_test.hpp>

#include "tests/support/run/alone.h"
#include "tests/support/run/small_run.h"

namespace tessera::test {

/// run_small on one rank, without MPI.
[[nodiscard]] inline RunBits alone(const SmallRunOptions& options) {
  Alone comm;
  return run_small(options, comm);
}

/// `what` is compared, for the message.
inline void check_same(const RunBits& actual, const RunBits& expected, const std::string& what) {
  BOOST_CHECK_MESSAGE(actual == expected,
                      what << ": " << text_of(actual) << " for " << text_of(expected));
}

}  // namespace tessera::test
