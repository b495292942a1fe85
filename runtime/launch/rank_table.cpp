#include "runtime/launch/rank_table.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <sched.h>

#include "collectives/mpi_session.h"
#include "runtime/launch/network_ports.h"

namespace tessera {
namespace {

std::string interfaces() {
  const std::vector<LocalAddress> all = local_addresses();
  if (all.empty()) {
    return "unknown";
  }
  std::vector<std::string> found;
  for (const LocalAddress& local : all) {
    const std::string address = ipv4_text(local.address);
    if (!local.is_loopback && !address.empty()) {
      found.push_back(fmt::format("{} {}", local.interface, address));
    }
  }
  return found.empty() ? "none" : fmt::format("{}", fmt::join(found, ", "));
}

}  // namespace

std::string ranges_text(std::span<const int> numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) {
      ++last;
    }
    text += fmt::format("{}{}", text.empty() ? "" : ",", numbers[i]);
    if (last > i) {
      text += fmt::format("-{}", numbers[last]);
    }
    i = last + 1;
  }
  return text;
}

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {
    return {};  // more cores than cpu_set_t holds
  }
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) {
      cores.push_back(core);
    }
  }
  return cores;
}

int consecutive_ranks(std::span<const std::string> hosts) {
  if (hosts.empty()) {
    return 1;
  }
  const auto other = std::find_if(hosts.begin(), hosts.end(),
                                  [&](const std::string& host) { return host != hosts.front(); });
  const std::ptrdiff_t each = other - hosts.begin();
  std::set<std::string> seen;
  for (std::ptrdiff_t first = 0; first < std::ssize(hosts); first += each) {
    const std::string& host = hosts[static_cast<std::size_t>(first)];
    const auto node =
        hosts.subspan(static_cast<std::size_t>(first),
                      static_cast<std::size_t>(std::min(each, std::ssize(hosts) - first)));
    const bool one_host = std::all_of(node.begin(), node.end(),
                                      [&](const std::string& text) { return text == host; });
    if (!one_host || !seen.insert(host).second) {
      return 1;
    }
  }
  return static_cast<int>(each);
}

std::string describe_rank(const MpiSession& session, Device device) {
  const std::vector<int> cores = usable_cores();
  std::string text = fmt::format(
      "rank {}  host {}  device {} ({})  cores {}  network {}", session.rank(), session.host(),
      device.kind == DeviceKind::cpu ? "cpu" : fmt::format("cuda:{}", device.ordinal),
      device_info(device).name, cores.empty() ? "unknown" : ranges_text(cores), interfaces());
  for (const char* name : {"NCCL_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include"}) {
    const char* value = std::getenv(name);
    if (value != nullptr) {
      text += fmt::format("  {}={}", name, value);
    }
  }
  return text;
}

}  // namespace tessera
