// Ports and connections as made-up /sys and /proc folders describe them, and as this machine does.
#define BOOST_TEST_MODULE network_ports
#include "runtime/launch/network_ports.h"

#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "tests/support/file_tree.h"

namespace tessera::test {
namespace {

class Tree : public FileTree {
 public:
  void file(const std::string& name, const std::string& line) const { put(name, line + "\n"); }
  void interface(const std::string& name, const std::string& state,
                 const std::string& speed) const {
    file("sys/class/net/" + name + "/operstate", state);
    file("sys/class/net/" + name + "/speed", speed);
  }
  void infiniband(const std::string& port, const std::string& state, const std::string& rate,
                  const std::string& layer) const {
    file("sys/class/infiniband/" + port + "/state", state);
    file("sys/class/infiniband/" + port + "/rate", rate);
    file("sys/class/infiniband/" + port + "/link_layer", layer);
  }
};

// 127.0.0.1, 192.168.0.2 and fd00::2 of this host.
std::vector<LocalAddress> addresses() {
  return {{"lo", {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}},
          {"eth0", {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 0, 2}},
          {"hsn0", {0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2}}};
}

std::string row(const std::string& from, const std::string& to, const std::string& state,
                int inode) {
  return "   0: " + from + " " + to + " " + state +
         " 00000000:00000000 00:00000000 00000000  1000        0 " + std::to_string(inode) +
         " 1 0000000000000000 20 4 30 10 -1\n";
}

BOOST_AUTO_TEST_CASE(active_ports_have_their_rates) {
  const Tree tree;
  tree.infiniband("mlx5_0/ports/1", "4: ACTIVE", "200 Gb/sec (4X HDR)", "InfiniBand");
  tree.infiniband("mlx5_0/ports/2", "1: DOWN", "10 Gb/sec (4X)", "InfiniBand");
  tree.infiniband("mlx5_1/ports/1", "4: ACTIVE", "100 Gb/sec (2X HDR)", "Ethernet");
  tree.file("sys/class/cxi/cxi0/device/vendor", "0x17db");
  tree.interface("hsn0", "up", "200000");
  tree.interface("eth0", "up", "1000");
  tree.interface("eth1", "down", "-1");
  tree.interface("lo", "unknown", "");
  tree.interface("veth1", "up", "");
  tree.interface("docker0", "up", "-1");
  tree.file("sys/class/net/docker0/bridge/bridge_id", "8000");
  const std::vector<NetworkPort> expected = {
      {"mlx5_0/1", "InfiniBand", 25e9, true}, {"mlx5_1/1", "RoCE", 12.5e9, true},
      {"cxi0", "Slingshot", 25e9, true},      {"eth0", "Ethernet", 0.125e9, false},
      {"hsn0", "Ethernet", 25e9, false},      {"veth1", "Ethernet", 0, false}};
  const std::vector<NetworkPort> found = active_ports(tree.root() / "sys");
  BOOST_TEST(found.size() == expected.size());
  for (std::size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    BOOST_TEST((found[i] == expected[i]), found[i].name);
  }
  BOOST_TEST(active_ports(tree.root() / "nothing").empty());
}

BOOST_AUTO_TEST_CASE(what_a_process_has_open_says_what_it_uses) {
  const Tree tree;
  tree.link("proc/fd/3", "socket:[100]");
  tree.link("proc/fd/4", "socket:[200]");
  tree.link("proc/fd/5", "/dev/null");
  tree.link("proc/fd/6", "socket:[300]");
  const std::string head = "  sl  local_address rem_address   st\n";
  tree.file("proc/net/tcp",
            head + row("0200A8C0:1F90", "0300A8C0:0050", "01", 100) +
                row("0100007F:1F90", "0100007F:0050", "01", 200) +  // itself
                row("0200A8C0:1F90", "0900A8C0:0050", "01", 999) +  // of another process
                "garbage\n");
  BOOST_TEST((ports_in_use(addresses(), tree.root() / "proc", tree.root() / "sys") ==
              PortsInUse{{}, {"eth0"}}));
  tree.file("proc/net/tcp6", head + row("000000FD000000000000000002000000:1F90",
                                        "000000FD000000000000000003000000:0050", "01", 300));
  BOOST_TEST((ports_in_use(addresses(), tree.root() / "proc", tree.root() / "sys") ==
              PortsInUse{{}, {"eth0", "hsn0"}}));
  tree.file("proc/net/tcp", head + row("0200A8C0:1F90", "0300A8C0:0050", "0A", 100));  // listens
  tree.link("proc/fd/7", "/dev/infiniband/uverbs1");
  tree.link("proc/fd/8", "/dev/infiniband/uverbs7");
  tree.link("proc/fd/9", "/dev/cxi0");
  tree.file("sys/class/infiniband_verbs/uverbs1/ibdev", "mlx5_2");
  BOOST_TEST((ports_in_use(addresses(), tree.root() / "proc", tree.root() / "sys") ==
              PortsInUse{{"cxi0", "mlx5_2", "uverbs7"}, {"hsn0"}}));
  BOOST_TEST(
      (ports_in_use(addresses(), tree.root() / "nothing", tree.root() / "sys") == PortsInUse{}));
}

BOOST_AUTO_TEST_CASE(what_a_process_has_loaded_says_how_it_moves_messages) {
  const Tree tree;
  const auto line = [](const std::string& file) {
    return "7f00-7f01 r-xp 00000000 fe:01 99    " + file + "\n";
  };
  tree.file("proc/maps", line("") + line("[heap]") + line("/usr/lib/openmpi3/mca_pml_ob1.so") +
                             line("/usr/lib/openmpi3/mca_btl_self.so") +
                             line("/usr/lib/openmpi3/mca_btl_tcp.so") +
                             line("/usr/lib/openmpi3/mca_btl_tcp.so") +
                             line("/usr/lib/openmpi3/mca_btl_vader.so") +
                             line("/usr/lib/openmpi3/mca_coll_tuned.so") +
                             line("/opt/aws/libnccl-net-ofi.so") + line("/usr/lib/libfabric.so.1") +
                             line("/usr/lib/libucp.so.0.0.0") + line("/usr/lib/libnccl.so.2"));
  const std::vector<std::string> expected = {"NCCL's libnccl-net-ofi.so", "UCX", "btl tcp",
                                             "libfabric", "pml ob1"};
  BOOST_TEST(network_libraries(tree.root() / "proc") == expected, boost::test_tools::per_element());
  BOOST_TEST(network_libraries(tree.root() / "nothing").empty());
}

BOOST_AUTO_TEST_CASE(this_host_has_its_own_address) {
  bool has_loopback = false;
  for (const LocalAddress& each : local_addresses()) {
    has_loopback = has_loopback || each.address == addresses().front().address;
  }
  BOOST_TEST(has_loopback);
}

}  // namespace
}  // namespace tessera::test
