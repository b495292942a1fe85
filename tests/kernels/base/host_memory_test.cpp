// Limits as made-up /proc and /sys trees give them.
#include "kernels/base/host_memory.h"

#include <boost/test/unit_test.hpp>

#include "tests/support/file_tree.h"

namespace tessera {
namespace {

constexpr std::size_t kKib = 1024;

class Tree : public test::FileTree {
 public:
  Tree() {
    put("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 800 kB\nHugetlb: 0 kB\n");
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(host_memory_limits)

BOOST_AUTO_TEST_CASE(a_machine_without_groups_gives_what_it_has) {
  const Tree tree;
  const HostMemory memory = host_memory(tree.root());
  BOOST_CHECK_EQUAL(memory.limit_bytes(), 1000 * kKib);
  BOOST_CHECK_EQUAL(memory.room_bytes(), 800 * kKib);
  BOOST_CHECK(memory.text().find("no limit of a control group") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(the_group_with_the_least_room_counts_in_version_2) {
  const Tree tree;
  tree.put("proc/self/cgroup", "0::/job/step\n");
  tree.put("sys/fs/cgroup/memory.max", "max\n");
  tree.put("sys/fs/cgroup/job/memory.max", "500000\n");
  tree.put("sys/fs/cgroup/job/memory.current", "300000\n");
  tree.put("sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 60000\nactive_file 40000\n");
  tree.put("sys/fs/cgroup/job/step/memory.max", "450000\n");
  tree.put("sys/fs/cgroup/job/step/memory.current", "100000\n");
  const HostMemory memory = host_memory(tree.root());
  BOOST_CHECK_EQUAL(memory.cgroup_limit_bytes, 500000U);
  BOOST_CHECK_EQUAL(memory.cgroup_used_bytes, 200000U);  // its cache can go
  BOOST_CHECK_EQUAL(memory.room_bytes(), 300000U);
}

BOOST_AUTO_TEST_CASE(a_container_that_sees_its_group_as_the_mount_is_understood) {
  const Tree tree;
  tree.put("proc/self/cgroup", "0::/../outside/name\n");
  tree.put("sys/fs/cgroup/memory.max", "400000\n");
  tree.put("sys/fs/cgroup/memory.current", "100000\n");
  BOOST_CHECK_EQUAL(host_memory(tree.root()).room_bytes(), 300000U);
}

BOOST_AUTO_TEST_CASE(version_1_has_its_own_names_and_its_own_infinity) {
  const Tree tree;
  tree.put("proc/self/cgroup", "9:cpu:/x\n4:hugetlb,memory:/job\n");
  tree.put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  tree.put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "200000\n");
  tree.put("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "150000\n");
  tree.put("sys/fs/cgroup/memory/job/memory.stat", "total_inactive_file 20000\ncache 90000\n");
  const HostMemory memory = host_memory(tree.root());
  BOOST_CHECK_EQUAL(memory.limit_bytes(), 200000U);
  BOOST_CHECK_EQUAL(memory.room_bytes(), 70000U);
}

BOOST_AUTO_TEST_CASE(what_is_resident_is_read_and_its_peak_started_again) {
  const Tree tree;
  tree.put("proc/self/status", "Name:\ttest\nVmHWM:\t    30 kB\nVmRSS:\t    20 kB\n");
  BOOST_CHECK_EQUAL(resident_memory(tree.root()).bytes, 20 * kKib);
  BOOST_CHECK_EQUAL(resident_memory(tree.root()).peak_bytes, 30 * kKib);
  constexpr std::size_t kLarge = std::size_t{64} << 20U;
  { const std::vector<char> touched(kLarge, 1); }
  BOOST_REQUIRE(restart_peak_of_resident_memory());
  const ResidentMemory memory = resident_memory();
  BOOST_CHECK_GT(memory.bytes, 0U);
  BOOST_CHECK_LT(memory.peak_bytes, memory.bytes + kLarge / 2);
}

BOOST_AUTO_TEST_CASE(processors_of_a_devices_node_are_found) {
  const Tree tree;
  tree.put("sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
  tree.put("sys/devices/system/node/node1/cpulist", "4-6,9\n");
  tree.put("sys/bus/pci/devices/0000:5e:00.0/numa_node", "-1\n");
  const std::vector<int> expected = {4, 5, 6, 9};
  BOOST_CHECK(processors_near("0000:3B:00.0", tree.root()) == expected);
  BOOST_CHECK(processors_near("0000:5E:00.0", tree.root()).empty());
  BOOST_CHECK(processors_near("0000:99:00.0", tree.root()).empty());
  BOOST_CHECK(parse_processors("").empty());
  BOOST_CHECK(parse_processors("x").empty());
  BOOST_CHECK_EQUAL(parse_processors("3,").size(), 1U);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera
