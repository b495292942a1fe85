#define BOOST_TEST_MODULE rank_table
#include "runtime/rank_table.h"

#include <vector>

#include <boost/test/unit_test.hpp>

namespace tessera::test {

BOOST_AUTO_TEST_SUITE(rank_table)

BOOST_AUTO_TEST_CASE(neighbouring_numbers_make_ranges) {
  const auto text = [](const std::vector<int>& numbers) { return ranges_text(numbers); };
  BOOST_TEST(text({}) == "");
  BOOST_TEST(text({7}) == "7");
  BOOST_TEST(text({0, 1}) == "0-1");
  BOOST_TEST(text({0, 1, 2, 5, 7, 8}) == "0-2,5,7-8");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
