#define BOOST_TEST_MODULE rank_table
#include "runtime/launch/rank_table.h"

#include <string>
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

BOOST_AUTO_TEST_CASE(ranks_of_a_node_count_where_they_follow_one_another) {
  const auto ranks = [](const std::vector<std::string>& hosts) { return consecutive_ranks(hosts); };
  BOOST_TEST(ranks({}) == 1);
  BOOST_TEST(ranks({"a"}) == 1);
  BOOST_TEST(ranks({"a", "a", "a"}) == 3);
  BOOST_TEST(ranks({"a", "a", "b", "b"}) == 2);
  BOOST_TEST(ranks({"a", "a", "b"}) == 2);  // a last node that is not full
  BOOST_TEST(ranks({"a", "b", "b"}) == 1);
  BOOST_TEST(ranks({"a", "b", "a", "b"}) == 1);
  BOOST_TEST(ranks({"a", "a", "b", "b", "a", "a"}) == 1);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
