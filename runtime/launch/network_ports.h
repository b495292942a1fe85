// The ports through which a host reaches others, as Linux describes them, and which of them a
// process has connections through. MPI and NCCL do not say what they chose; what a process has open
// does.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace tessera {

/// An active port of this host.
struct NetworkPort {
  std::string name;    // "mlx5_0/1", "cxi0", "eth0"
  std::string fabric;  // "InfiniBand", "RoCE", "Slingshot", "Ethernet", or what the driver says
  double bytes_per_second = 0;  // of its link, each way; 0: not known
  bool is_rdma = false;         // reached past the kernel's sockets
  friend bool operator==(const NetworkPort&, const NetworkPort&) = default;
};

/// Those of a system whose /sys is at `sys`: RDMA ports first, then network interfaces that are up,
/// but for loopback and bridges; each kind by name. Sources: Linux's Documentation/ABI, stable/
/// sysfs-class-infiniband and testing/sysfs-class-net; Slingshot's driver has /sys/class/cxi.
[[nodiscard]] std::vector<NetworkPort> active_ports(const std::filesystem::path& sys = "/sys");

/// An IPv6 address, or an IPv4 one mapped into IPv6, in network order.
using IpAddress = std::array<std::uint8_t, 16>;

/// An address of this host.
struct LocalAddress {
  std::string interface;
  IpAddress address;
  bool is_loopback = false;  // of the interface
};

/// "192.168.0.2" of an IPv4 address; empty for others.
[[nodiscard]] std::string ipv4_text(const IpAddress& address);

/// Of all interfaces of this host that are up, loopback too.
[[nodiscard]] std::vector<LocalAddress> local_addresses();

/// What a process reaches others through.
struct PortsInUse {
  std::vector<std::string> rdma;        // RDMA devices that it has open: "mlx5_0", "cxi0"
  std::vector<std::string> interfaces;  // of its TCP connections to other hosts
  friend bool operator==(const PortsInUse&, const PortsInUse&) = default;
};

/// Of the process whose folder in /proc is `process`; without what cannot be read. `local`: as
/// local_addresses gives them.
[[nodiscard]] PortsInUse ports_in_use(std::span<const LocalAddress> local,
                                      const std::filesystem::path& process = "/proc/self",
                                      const std::filesystem::path& sys = "/sys");

/// What a process moves messages to other hosts with, as far as the libraries that it has loaded say so:
/// Open MPI's components ("pml ob1", "btl tcp", "mtl ofi"), "UCX", "libfabric", NCCL's plugin ("NCCL's
/// libnccl-net-ofi.so").
[[nodiscard]] std::vector<std::string> network_libraries(
    const std::filesystem::path& process = "/proc/self");

}  // namespace tessera
