// What is reported of networks: a faster one that is not used, with the settings that change it, and
// neighbours that are slow.
#define BOOST_TEST_MODULE network_check
#include "runtime/launch/network_check.h"

#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

namespace tessera::test {
namespace {

const NetworkPort kEthernet = {"eth0", "Ethernet", 1.25e9, false};
const NetworkPort kInfiniBand = {"mlx5_0/1", "InfiniBand", 25e9, true};
const NetworkPort kSlingshot = {"cxi0", "Slingshot", 25e9, true};

HostNetwork host(const std::string& name, const std::vector<NetworkPort>& ports,
                 const PortsInUse& in_use) {
  return {name, ports, in_use, 4};
}

std::vector<HostNetwork> hosts(const std::vector<NetworkPort>& ports, const PortsInUse& in_use,
                               int count = 2) {
  std::vector<HostNetwork> all;
  for (int i = 0; i < count; ++i) {
    all.push_back(host(std::string("node") + static_cast<char>('a' + i), ports, in_use));
  }
  return all;
}

NetworkReport report_of(const std::vector<HostNetwork>& all, const std::string& data_path = "NCCL",
                        const std::vector<PairRate>& pairs = {}) {
  return report_network(all, {2e9, 1e9, pairs}, data_path);
}

BOOST_AUTO_TEST_CASE(what_is_used_is_said_with_its_rates) {
  const NetworkReport report = report_of(hosts({kEthernet}, {{}, {"eth0"}}), "MPI");
  BOOST_TEST(
      report.text ==
      "network: 2 hosts, MPI through sockets on eth0 (Ethernet, 10 Gb/s); into a host 2.00 GB/s "
      "in an all-gather, 1.00 GB/s in an all-to-all");
  BOOST_TEST(report.warnings.empty());
  BOOST_TEST(report_of({host("a", {kEthernet}, {{}, {"eth0"}})}).text.empty());
  // one host has another way
  auto two = hosts({kEthernet, kInfiniBand}, {{"mlx5_0"}, {"eth0"}});
  two.push_back(host("nodec", {}, {{}, {"eth7"}}));
  const std::string text = report_of(two).text;
  BOOST_TEST(text.find("RDMA over mlx5_0/1 (InfiniBand, 200 Gb/s) (2 hosts)") != std::string::npos,
             text);
  BOOST_TEST(text.find("sockets on eth7 (Ethernet) (1 host)") != std::string::npos, text);
}

BOOST_AUTO_TEST_CASE(sockets_beside_a_faster_fabric_are_named_with_what_to_set) {
  const auto faster = [](const NetworkPort& port, const std::string& data_path) {
    const NetworkReport report = report_of(hosts({port, kEthernet}, {{}, {"eth0"}}), data_path);
    BOOST_REQUIRE(!report.faster.empty());
    BOOST_TEST((report.warnings == std::vector<std::string>{report.faster}));
    return report.faster;
  };
  BOOST_TEST(faster(kInfiniBand, "NCCL") ==
             "ranks on nodea talk through sockets on eth0 (Ethernet, 10 Gb/s), and it has mlx5_0/1 "
             "(InfiniBand, 200 Gb/s): set NCCL_IB_HCA=mlx5_0, and leave NCCL_IB_DISABLE unset "
             "(jobs/cluster.md) (and 1 host more)");
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  BOOST_TEST(has(faster(kInfiniBand, "MPI"), "mpirun --mca pml ucx -x UCX_NET_DEVICES=mlx5_0:1"));
  BOOST_TEST(has(faster(kSlingshot, "NCCL"), "aws-ofi-nccl"));
  BOOST_TEST(has(faster(kSlingshot, "MPI"), "FI_PROVIDER=cxi"));
  const NetworkPort second = {"eth1", "Ethernet", 2.5e9, false};
  BOOST_TEST(has(faster(second, "NCCL"), "set NCCL_SOCKET_IFNAME=eth1"));
  BOOST_TEST(has(faster(second, "MPI"), "mpirun --mca btl_tcp_if_include eth1"));
}

BOOST_AUTO_TEST_CASE(what_is_as_good_or_not_known_is_no_reason) {
  const auto quiet = [](const std::vector<NetworkPort>& ports, const PortsInUse& in_use) {
    return report_of(hosts(ports, in_use)).warnings.empty();
  };
  BOOST_TEST(quiet({kInfiniBand, kEthernet}, {{"mlx5_0"}, {"eth0"}}));  // sockets set it up
  BOOST_TEST(quiet({kEthernet, {"eth1", "Ethernet", 1.25e9, false}}, {{}, {"eth0"}}));
  BOOST_TEST(quiet({kEthernet, {"veth1", "Ethernet", 0, false}}, {{}, {"eth0"}}));
  BOOST_TEST(
      quiet({{"eth0", "Ethernet", 0, false}, {"eth1", "Ethernet", 9e9, false}}, {{}, {"eth0"}}));
  BOOST_TEST(quiet({kEthernet, {"mlx4_0/1", "RoCE", 0.125e9, true}}, {{}, {"eth0"}}));
  BOOST_TEST(quiet({kInfiniBand}, {}));  // nothing is known of what is used
}

BOOST_AUTO_TEST_CASE(slow_neighbours_are_named) {
  const auto with_pairs = [](const std::vector<double>& rates) {
    std::vector<PairRate> pairs;
    for (std::size_t i = 0; i < rates.size(); ++i) {
      const auto name = [](std::size_t n) {
        return std::string("node") + static_cast<char>('a' + n);
      };
      pairs.push_back({name(i), name(i + 1), rates[i]});
    }
    return report_of(hosts({kEthernet}, {{}, {"eth0"}}, static_cast<int>(rates.size()) + 1), "NCCL",
                     pairs);
  };
  BOOST_TEST(with_pairs({1e9, 0.9e9, 0.6e9}).warnings.empty());
  const NetworkReport one = with_pairs({1e9, 0.2e9, 1e9});
  BOOST_REQUIRE(one.warnings.size() == 1U);
  BOOST_TEST(
      one.warnings.front().starts_with("between nodeb and nodec only 200.00 MB/s arrive, where the "
                                       "median of neighbouring hosts is 1.00 GB/s: "));
  BOOST_TEST(one.faster.empty());
  const NetworkReport link = with_pairs({0.4e9});
  BOOST_REQUIRE(link.warnings.size() == 1U);
  BOOST_TEST(
      link.warnings.front().starts_with("between nodea and nodeb only 400.00 MB/s arrive, less "
                                        "than a third of the 1.25 GB/s that their link has: "));
  const auto fields = network_fields(link);
  BOOST_TEST(fields["pairs"][0]["bytes_per_second"] == 0.4e9);
  BOOST_TEST(fields["hosts"][1]["host"] == "nodeb");
  BOOST_TEST(fields["hosts"][1]["used"][0]["port"] == "eth0");
  BOOST_TEST(fields["all_to_all_bytes_per_second"] == 1e9);
}

}  // namespace
}  // namespace tessera::test
