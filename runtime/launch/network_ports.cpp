#include "runtime/launch/network_ports.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

namespace tessera {
namespace {

constexpr double kGigabit = 1e9 / 8;  // bytes
constexpr double kMegabit = 1e6 / 8;
constexpr std::string_view kUp = "up";
constexpr std::size_t kMapped = 12;  // bytes before an IPv4 address in IPv6

// The names in a folder, in order; none where it cannot be read.
std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The first line of a file; empty where it cannot be read.
std::string line_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  (void)std::getline(in, line);
  return line;
}

// The number that `text` begins with; 0 where there is none.
double number_of(const std::string& text) {
  double number = 0;
  (void)std::from_chars(text.data(), text.data() + text.size(), number);
  return std::max(number, 0.0);
}

bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

std::string rdma_fabric(const std::string& link_layer) {
  return link_layer == "Ethernet" ? "RoCE" : link_layer.empty() ? "RDMA" : link_layer;
}

void add_infiniband(const std::filesystem::path& sys, std::vector<NetworkPort>& ports) {
  const std::filesystem::path devices = sys / "class/infiniband";
  for (const std::string& device : names_in(devices)) {
    for (const std::string& number : names_in(devices / device / "ports")) {
      const std::filesystem::path port = devices / device / "ports" / number;
      if (line_of(port / "state").find("ACTIVE") != std::string::npos) {
        ports.push_back({fmt::format("{}/{}", device, number),
                         rdma_fabric(line_of(port / "link_layer")),
                         kGigabit * number_of(line_of(port / "rate")), true});
      }
    }
  }
}

// A device cxiN and an interface hsnN are one port.
void add_slingshot(const std::filesystem::path& sys, std::vector<NetworkPort>& ports) {
  for (const std::string& device : names_in(sys / "class/cxi")) {
    constexpr std::string_view kDevice = "cxi";
    const std::string interface = "hsn" + device.substr(std::min(kDevice.size(), device.size()));
    const std::filesystem::path net = sys / "class/net" / interface;
    if (line_of(net / "operstate") == kUp) {
      ports.push_back({device, "Slingshot", kMegabit * number_of(line_of(net / "speed")), true});
    }
  }
}

void add_interfaces(const std::filesystem::path& sys, std::vector<NetworkPort>& ports) {
  const std::filesystem::path interfaces = sys / "class/net";
  for (const std::string& name : names_in(interfaces)) {
    const std::filesystem::path net = interfaces / name;
    if (line_of(net / "operstate") == kUp && !is_there(net / "bridge")) {
      ports.push_back({name, "Ethernet", kMegabit * number_of(line_of(net / "speed")), false});
    }
  }
}

std::optional<IpAddress> address_of(const sockaddr* socket_address) {
  IpAddress address{};
  if (socket_address == nullptr) {
    return std::nullopt;
  }
  if (socket_address->sa_family == AF_INET) {
    address[kMapped - 1] = address[kMapped - 2] = 0xff;
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(socket_address);
    std::memcpy(address.data() + kMapped, &v4->sin_addr, sizeof(v4->sin_addr));
    return address;
  }
  if (socket_address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(socket_address);
    std::memcpy(address.data(), &v6->sin6_addr, address.size());
    return address;
  }
  return std::nullopt;
}

// "0200A8C0:1F90" of /proc/net/tcp, or four such words of tcp6: words of memory, printed as numbers.
std::optional<IpAddress> address_of(std::string_view text) {
  constexpr std::size_t kDigits = 8;
  const std::string_view digits = text.substr(0, text.find(':'));
  if (digits.size() != kDigits && digits.size() != 4 * kDigits) {
    return std::nullopt;
  }
  IpAddress address{};
  std::size_t at = digits.size() == kDigits ? kMapped : 0;
  if (at == kMapped) {
    address[kMapped - 1] = address[kMapped - 2] = 0xff;
  }
  for (std::size_t begin = 0; begin < digits.size(); begin += kDigits, at += 4) {
    std::uint32_t word = 0;
    constexpr int kHex = 16;
    const char* first = digits.data() + begin;
    if (std::from_chars(first, first + kDigits, word, kHex).ptr != first + kDigits) {
      return std::nullopt;
    }
    std::memcpy(address.data() + at, &word, sizeof(word));
  }
  return address;
}

// What the descriptors of a process are: "/dev/infiniband/uverbs0", "socket:[1234]".
std::set<std::string> open_files(const std::filesystem::path& process) {
  std::set<std::string> files;
  for (const std::string& name : names_in(process / "fd")) {
    std::error_code error;
    const std::filesystem::path target =
        std::filesystem::read_symlink(process / "fd" / name, error);
    if (!error) {
      files.insert(target.string());
    }
  }
  return files;
}

std::vector<std::string> rdma_devices(const std::set<std::string>& open,
                                      const std::filesystem::path& sys) {
  constexpr std::string_view kVerbs = "/dev/infiniband/uverbs";
  constexpr std::string_view kSlingshot = "/dev/cxi";
  std::set<std::string> found;
  for (const std::string& file : open) {
    const std::string name = std::filesystem::path(file).filename().string();
    if (file.starts_with(kVerbs)) {
      const std::string device = line_of(sys / "class/infiniband_verbs" / name / "ibdev");
      found.insert(device.empty() ? name : device);
    } else if (file.starts_with(kSlingshot)) {
      found.insert(name);
    }
  }
  return {found.begin(), found.end()};
}

const std::string* interface_of(std::span<const LocalAddress> local, const IpAddress& address) {
  const auto found = std::find_if(local.begin(), local.end(), [&](const LocalAddress& each) {
    return each.address == address;
  });
  return found == local.end() ? nullptr : &found->interface;
}

// The interfaces of the process's established connections in one table of the kernel.
void add_connections(const std::filesystem::path& table, const std::set<std::string>& open,
                     std::span<const LocalAddress> local, std::set<std::string>& interfaces) {
  constexpr std::string_view kEstablished = "01";
  std::ifstream in(table);
  std::string line;
  (void)std::getline(in, line);  // the names of its columns
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string number;
    std::string from;
    std::string to;
    std::string state;
    std::string inode;
    words >> number >> from >> to >> state;
    for (int i = 0; i < 6; ++i) {  // queues, timer, retransmits, uid, timeout, inode
      words >> inode;
    }
    const std::optional<IpAddress> mine = address_of(from);
    const std::optional<IpAddress> other = address_of(to);
    if (!words || state != kEstablished || !mine || !other ||
        !open.contains(fmt::format("socket:[{}]", inode)) ||
        interface_of(local, *other) != nullptr) {
      continue;
    }
    if (const std::string* interface = interface_of(local, *mine)) {
      interfaces.insert(*interface);
    }
  }
}

}  // namespace

std::vector<NetworkPort> active_ports(const std::filesystem::path& sys) {
  std::vector<NetworkPort> ports;
  add_infiniband(sys, ports);
  add_slingshot(sys, ports);
  add_interfaces(sys, ports);
  return ports;
}

std::string ipv4_text(const IpAddress& address) {
  std::array<char, INET_ADDRSTRLEN> text{};
  in6_addr v6{};
  std::memcpy(&v6, address.data(), address.size());
  return IN6_IS_ADDR_V4MAPPED(&v6) &&
                 inet_ntop(AF_INET, address.data() + kMapped, text.data(), text.size()) != nullptr
             ? text.data()
             : "";
}

std::vector<LocalAddress> local_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return {};
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::vector<LocalAddress> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const std::optional<IpAddress> address = address_of(entry->ifa_addr);
    if (address && (entry->ifa_flags & IFF_UP) != 0) {
      found.push_back({entry->ifa_name, *address, (entry->ifa_flags & IFF_LOOPBACK) != 0});
    }
  }
  return found;
}

PortsInUse ports_in_use(std::span<const LocalAddress> local, const std::filesystem::path& process,
                        const std::filesystem::path& sys) {
  const std::set<std::string> open = open_files(process);
  std::set<std::string> interfaces;
  for (const char* table : {"net/tcp", "net/tcp6"}) {
    add_connections(process / table, open, local, interfaces);
  }
  return {rdma_devices(open, sys), {interfaces.begin(), interfaces.end()}};
}

std::vector<std::string> network_libraries(const std::filesystem::path& process) {
  std::set<std::string> found;
  std::ifstream maps(process / "maps");
  for (std::string line; std::getline(maps, line);) {
    const std::string name = std::filesystem::path(line).filename().string();
    for (const std::string_view kind : {"pml", "mtl", "btl"}) {
      const std::string prefix = fmt::format("mca_{}_", kind);
      if (name.starts_with(prefix)) {
        found.insert(
            fmt::format("{} {}", kind, name.substr(prefix.size(), name.find('.') - prefix.size())));
      }
    }
    if (name.starts_with("libucp.so")) {
      found.insert("UCX");
    } else if (name.starts_with("libfabric.so")) {
      found.insert("libfabric");
    } else if (name.starts_with("libnccl-net") || name.starts_with("libnccl_net")) {
      found.insert(fmt::format("NCCL's {}", name));
    }
  }
  for (const char* inside_a_host : {"btl self", "btl sm", "btl vader"}) {
    found.erase(inside_a_host);
  }
  return {found.begin(), found.end()};
}

}  // namespace tessera
