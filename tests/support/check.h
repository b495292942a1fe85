// Boost.Test checks of compare.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "tests/support/compare.h"

namespace tessera::test {

/// Fails the running case unless every element is within its bound.
inline void check_close(const std::vector<double>& actual, const std::vector<double>& expected,
                        const std::vector<double>& bounds, std::string_view what) {
  const std::string found = difference(actual, expected, bounds, what);
  BOOST_CHECK_MESSAGE(found.empty(), found);
}

/// Fails the running case unless every element is the same.
inline void check_equal(const std::vector<double>& actual, const std::vector<double>& expected,
                        std::string_view what) {
  check_close(actual, expected, {0.0}, what);
}

}  // namespace tessera::test
