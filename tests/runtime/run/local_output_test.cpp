// Whose shards are copied to whom: hosts in a ring.
#include "runtime/run/local_output.h"

#include <map>

#include <boost/test/unit_test.hpp>

namespace tessera::test {
namespace {

using Ranks = std::vector<int>;

BOOST_AUTO_TEST_SUITE(local_output)

BOOST_AUTO_TEST_CASE(hosts_stand_in_a_ring_by_their_lowest_ranks) {
  const std::vector<std::string> hosts = {"b", "a", "b", "c", "a", "b"};
  const HostRing ring = host_ring(hosts, 4);
  BOOST_TEST(ring.mine == Ranks({1, 4}), boost::test_tools::per_element());
  BOOST_TEST(ring.next == Ranks({3}), boost::test_tools::per_element());
  BOOST_TEST(ring.previous == Ranks({0, 2, 5}), boost::test_tools::per_element());
  BOOST_TEST(host_ring(hosts, 3).next == Ranks({0, 2, 5}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(one_host_has_no_partner_and_two_are_each_others) {
  BOOST_TEST(host_ring({"a", "a"}, 1).next.empty());
  BOOST_TEST(host_ring({"a", "a"}, 1).previous.empty());
  const HostRing ring = host_ring({"a", "b"}, 0);
  BOOST_TEST(ring.next == Ranks({1}), boost::test_tools::per_element());
  BOOST_TEST(ring.previous == Ranks({1}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(every_shard_goes_to_another_host_and_ranks_there_share_the_work) {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < 23; ++rank) {
    hosts.push_back(std::string(1, static_cast<char>('a' + rank * rank % 5)));
  }
  std::map<int, int> received;
  for (int rank = 0; rank < 23; ++rank) {
    const HostRing ring = host_ring(hosts, rank);
    const int partner = HostRing::partner_of(rank, ring.mine, ring.next);
    BOOST_TEST(hosts[static_cast<std::size_t>(partner)] != hosts[static_cast<std::size_t>(rank)]);
    ++received[partner];
    // what a rank expects is what comes
    const HostRing there = host_ring(hosts, partner);
    BOOST_TEST(there.previous == ring.mine, boost::test_tools::per_element());
  }
  for (const auto& [partner, count] : received) {
    const HostRing ring = host_ring(hosts, partner);
    const std::size_t most = (ring.previous.size() + ring.mine.size() - 1) / ring.mine.size();
    BOOST_TEST(count <= static_cast<int>(most));
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
