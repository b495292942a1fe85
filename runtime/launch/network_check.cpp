#include "runtime/launch/network_check.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "collectives/mpi_control.h"
#include "collectives/mpi_session.h"
#include "kernels/base/clock.h"
#include "kernels/base/progress.h"
#include "kernels/base/quantity.h"
#include "kernels/device/device_buffer.h"
#include "kernels/device/stream.h"
#include "model/json_text.h"
#include "runtime/launch/agree.h"
#include "runtime/launch/rank_table.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr Index kElements = Index{16} << 20U;  // f32 of a receive buffer: 64 MiB
constexpr double kSeconds = 0.12;              // of one measurement, four of them at most
constexpr double kLongCall = 0.02;
constexpr int kMostRepeats = 4096;
constexpr Index kLeastPart = 256;  // of a slice, to begin with
constexpr double kFasterInterface = 2;
constexpr double kOfMedian = 0.5;
constexpr double kOfLink = 1.0 / 3;

// ---- measuring

// All ranks' numbers.
std::vector<double> gathered(Communicator& comm, double value) {
  std::vector<double> values;
  for (const std::string& text : comm.gather_text(fmt::format("{}", value))) {
    double number = 0;
    (void)std::from_chars(text.data(), text.data() + text.size(), number);
    values.push_back(number);
  }
  return values;
}

// How long `elements` took to move.
struct Timing {
  Index elements = 0;
  double seconds = 0;  // on this rank
};

// Moves `least` elements, then four times as many and so on up to `most`, until a call takes some rank
// longer than kLongCall and more elements do not move faster; then repeats that one until a rank has
// spent kSeconds. So a slow network takes hardly longer than a fast one, whoever has the slow link, and
// what is measured is not the time that a message waits.
Timing time_moves(Communicator& comm, Stream& stream, Index least, Index most,
                  const std::function<void(Index)>& move) {
  constexpr Index kGrowth = 4;
  constexpr double kFaster = 1.5;
  double last_rate = 0;
  Index elements = std::max<Index>(1, least);
  int repeats = 1;
  move(elements);  // connections are made
  stream.synchronize();
  for (;;) {
    comm.barrier();
    const double start = host_seconds();
    for (int i = 0; i < repeats; ++i) {
      move(elements);
    }
    stream.synchronize();
    const double seconds = host_seconds() - start;
    const std::vector<double> of_ranks = gathered(comm, seconds);
    const double longest = *std::max_element(of_ranks.begin(), of_ranks.end());
    const double rate = static_cast<double>(elements) / longest;
    if (repeats == 1 && elements < most && (longest < kLongCall || rate > kFaster * last_rate)) {
      last_rate = rate;
      elements = std::min(kGrowth * elements, most);
    } else if (longest >= kSeconds || repeats >= kMostRepeats) {
      return {elements, seconds / repeats};
    } else {
      repeats *= 2;
    }
  }
}

class Measurement {
 public:
  Measurement(Communicator& comm, Device device, std::span<const std::string> hosts)
      : comm_(comm),
        hosts_(hosts),
        stream_(device, StreamPriority::normal, "network check"),
        slice_(std::max<Index>(1, kElements / comm.world_size())),
        send_(device, MemoryKind::device, DType::f32, {slice_ * comm.world_size()},
              "network check"),
        recv_(device, MemoryKind::device, DType::f32, {slice_ * comm.world_size()},
              "network check") {
    zero_async(send_.view(), stream_);
  }

  NetworkRates run() {
    NetworkRates rates;
    const auto here = static_cast<double>(std::count(hosts_.begin(), hosts_.end(), hosts_[0]));
    const double elsewhere = static_cast<double>(hosts_.size()) - here;
    rates.all_gather =
        elsewhere * rate_of([this](Index slice) {
          comm_.all_gather(send_.view().slice(0, slice),
                           recv_.view().slice(0, slice * comm_.world_size()), stream_);
        });
    rates.all_to_all =
        here * elsewhere * rate_of([this](Index slice) {
          const Index count = slice * comm_.world_size();
          comm_.all_to_all(send_.view().slice(0, count), recv_.view().slice(0, count), stream_);
        });
    const int each = consecutive_ranks(hosts_);
    if (here == each && comm_.world_size() % each == 0) {
      for (const int first_node : {0, 1}) {
        measure_pairs(first_node, each, rates);
      }
    }
    return rates;
  }

 private:
  static double bytes_per_second(const Timing& timing) {
    return static_cast<double>(timing.elements) * sizeof(float) / timing.seconds;
  }

  Timing time_of(const std::function<void(Index)>& move) {
    return time_moves(comm_, stream_, slice_ / kLeastPart, slice_, move);
  }

  // Of one slice, as rank 0 measures it.
  double rate_of(const std::function<void(Index)>& move) {
    return gathered(comm_, bytes_per_second(time_of(move))).front();
  }

  // Nodes first_node and first_node + 1, the two after them, ...: each rank with the one of its
  // place in the other node, all pairs at the same time.
  void measure_pairs(int first_node, int each, NetworkRates& rates) {
    const int nodes = comm_.world_size() / each;
    if (first_node + 1 >= nodes) {
      return;
    }
    const int node = comm_.rank() / each;
    const int lower = node < first_node ? node : node - (node - first_node) % 2;
    const bool has_partner = node >= first_node && lower + 1 < nodes;
    const RankGroup group = {
        .first = has_partner ? lower * each + comm_.rank() % each : comm_.rank(),
        .stride = has_partner ? each : 1,
        .count = has_partner ? 2 : 1};
    const std::vector<double> rates_by_rank =
        gathered(comm_, bytes_per_second(time_of([&](Index slice) {
                   const Index count = group.count * slice;
                   comm_.all_to_all(group, send_.view().slice(0, count),
                                    recv_.view().slice(0, count), stream_);
                 })));
    for (int first = first_node; first + 1 < nodes; first += 2) {
      const auto begin = static_cast<std::size_t>(first) * static_cast<std::size_t>(each);
      const auto of_node = static_cast<std::size_t>(each);
      const std::span of_pair = std::span(rates_by_rank).subspan(begin, 2 * of_node);
      rates.pairs.push_back({hosts_[begin], hosts_[begin + of_node],
                             each * *std::min_element(of_pair.begin(), of_pair.end())});
    }
  }

  Communicator& comm_;
  std::span<const std::string> hosts_;
  Stream stream_;
  Index slice_;
  DeviceBuffer send_;
  DeviceBuffer recv_;
};

// ---- gathering

std::string to_text(const HostNetwork& network) {
  Json ports = Json::array();
  for (const NetworkPort& port : network.ports) {
    ports.push_back({{"name", port.name},
                     {"fabric", port.fabric},
                     {"bytes_per_second", port.bytes_per_second},
                     {"is_rdma", port.is_rdma}});
  }
  return json_text(Json{{"host", network.host},
                        {"ports", ports},
                        {"rdma", network.in_use.rdma},
                        {"interfaces", network.in_use.interfaces},
                        {"libraries", network.libraries}});
}

HostNetwork host_network(const std::string& text) {
  const Json json = Json::parse(text);
  HostNetwork network = {json.at("host").get<std::string>(),
                         {},
                         {json.at("rdma").get<std::vector<std::string>>(),
                          json.at("interfaces").get<std::vector<std::string>>()},
                         1,
                         json.at("libraries").get<std::vector<std::string>>()};
  for (const Json& port : json.at("ports")) {
    network.ports.push_back(
        {port.at("name").get<std::string>(), port.at("fabric").get<std::string>(),
         port.at("bytes_per_second").get<double>(), port.at("is_rdma").get<bool>()});
  }
  return network;
}

// The first rank of each host speaks for it.
std::vector<HostNetwork> gathered_hosts(MpiSession& session) {
  const std::string mine = to_text(
      {session.host(), active_ports(), ports_in_use(local_addresses()), 1, network_libraries()});
  std::vector<HostNetwork> hosts;
  for (const std::string& text : session.control().gather_text(mine)) {
    HostNetwork network = host_network(text);
    const auto known = std::find_if(hosts.begin(), hosts.end(), [&](const HostNetwork& each) {
      return each.host == network.host;
    });
    if (known == hosts.end()) {
      hosts.push_back(std::move(network));
    } else {
      ++known->ranks;
    }
  }
  return hosts;
}

// ---- judging

std::string rate_text(double bytes_per_second) {
  return format_bytes(static_cast<std::size_t>(bytes_per_second)) + "/s";
}

std::string port_text(const NetworkPort& port) {
  const double gigabits = port.bytes_per_second * 8 / 1e9;
  return port.bytes_per_second > 0
             ? fmt::format("{} ({}, {:.4g} Gb/s)", port.name, port.fabric, gigabits)
             : fmt::format("{} ({})", port.name, port.fabric);
}

const NetworkPort* find_port(const HostNetwork& network, std::string_view name) {
  const auto found =
      std::find_if(network.ports.begin(), network.ports.end(), [name](const NetworkPort& port) {
        return port.name == name ||
               (port.is_rdma && port.name.starts_with(fmt::format("{}/", name)));
      });
  return found == network.ports.end() ? nullptr : &*found;
}

// The ports that the host's ranks use, as far as they are known; the fastest last.
std::vector<NetworkPort> used_ports(const HostNetwork& network) {
  std::vector<NetworkPort> used;
  // Who has opened an RDMA device uses sockets to set up its connections.
  const bool has_rdma = !network.in_use.rdma.empty();
  for (const std::string& name : has_rdma ? network.in_use.rdma : network.in_use.interfaces) {
    const NetworkPort* port = find_port(network, name);
    used.push_back(
        port != nullptr ? *port : NetworkPort{name, has_rdma ? "RDMA" : "Ethernet", 0, has_rdma});
  }
  std::stable_sort(used.begin(), used.end(), [](const NetworkPort& a, const NetworkPort& b) {
    return a.bytes_per_second < b.bytes_per_second;
  });
  return used;
}

std::string used_text(const HostNetwork& network) {
  const std::vector<NetworkPort> used = used_ports(network);
  if (used.empty()) {
    return "an unknown way";
  }
  std::vector<std::string> texts;
  std::transform(used.begin(), used.end(), std::back_inserter(texts), port_text);
  return fmt::format("{} {}", used.front().is_rdma ? "RDMA over" : "sockets on",
                     fmt::join(texts, ", "));
}

std::string libraries_text(const std::vector<std::string>& libraries) {
  return libraries.empty() ? std::string() : fmt::format(", with {}", fmt::join(libraries, ", "));
}

// The settings with which MPI or NCCL takes `port`.
std::string settings_text(const NetworkPort& port, std::string_view data_path) {
  const bool is_mpi = data_path == "MPI";
  if (port.fabric == "Slingshot") {
    return is_mpi ? "use an MPI with libfabric's provider cxi (FI_PROVIDER=cxi)"
                  : "give NCCL the plugin of aws-ofi-nccl (LD_LIBRARY_PATH), with FI_PROVIDER=cxi";
  }
  const std::string device = port.name.substr(0, port.name.find('/'));
  if (port.is_rdma) {
    return is_mpi ? fmt::format(
                        "use an MPI with UCX (mpirun --mca pml ucx -x UCX_NET_DEVICES={}:{})",
                        device, port.name.substr(std::min(device.size() + 1, port.name.size())))
                  : fmt::format("set NCCL_IB_HCA={}, and leave NCCL_IB_DISABLE unset", device);
  }
  return is_mpi ? fmt::format("mpirun --mca btl_tcp_if_include {}", port.name)
                : fmt::format("set NCCL_SOCKET_IFNAME={}", port.name);
}

// A port of the host that is much faster than those that its ranks use through sockets.
std::optional<NetworkPort> faster_port(const HostNetwork& network) {
  const std::vector<NetworkPort> used = used_ports(network);
  if (used.empty() || used.front().is_rdma) {
    return std::nullopt;
  }
  const auto best = std::max_element(
      network.ports.begin(), network.ports.end(), [](const NetworkPort& a, const NetworkPort& b) {
        return std::pair(a.is_rdma, a.bytes_per_second) < std::pair(b.is_rdma, b.bytes_per_second);
      });
  if (best == network.ports.end()) {
    return std::nullopt;
  }
  const double now = used.back().bytes_per_second;
  const bool is_faster = best->is_rdma
                             ? best->bytes_per_second == 0 || best->bytes_per_second >= now
                             : now > 0 && best->bytes_per_second >= kFasterInterface * now;
  return is_faster ? std::optional(*best) : std::nullopt;
}

// The sentence of the first host with a faster port, and how many others have one; empty: none has.
std::string faster_text(std::span<const HostNetwork> hosts, std::string_view data_path) {
  std::string first;
  Index count = 0;
  for (const HostNetwork& network : hosts) {
    const std::optional<NetworkPort> port = faster_port(network);
    count += port ? 1 : 0;
    if (port && first.empty()) {
      first = fmt::format("ranks on {} talk through {}, and it has {}: {} (jobs/cluster.md)",
                          network.host, used_text(network), port_text(*port),
                          settings_text(*port, data_path));
    }
  }
  return count < 2 ? first : fmt::format("{} (and {} more)", first, counted(count - 1, "host"));
}

// What the links of all ports in use carry together; 0 where one is not known.
double link_rate(const HostNetwork& network) {
  double sum = 0;
  for (const NetworkPort& port : used_ports(network)) {
    if (port.bytes_per_second == 0) {
      return 0;
    }
    sum += port.bytes_per_second;
  }
  return sum;
}

const HostNetwork* find_host(std::span<const HostNetwork> hosts, std::string_view name) {
  const auto found = std::find_if(hosts.begin(), hosts.end(),
                                  [name](const HostNetwork& each) { return each.host == name; });
  return found == hosts.end() ? nullptr : &*found;
}

double pair_link_rate(std::span<const HostNetwork> hosts, const PairRate& pair) {
  const HostNetwork* first = find_host(hosts, pair.first);
  const HostNetwork* second = find_host(hosts, pair.second);
  return first == nullptr || second == nullptr ? 0
                                               : std::min(link_rate(*first), link_rate(*second));
}

double median_rate(std::span<const PairRate> pairs) {
  std::vector<double> rates;
  std::transform(pairs.begin(), pairs.end(), std::back_inserter(rates),
                 [](const PairRate& pair) { return pair.bytes_per_second; });
  std::sort(rates.begin(), rates.end());
  return rates.empty() ? 0 : rates[rates.size() / 2];
}

void add_slow_pairs(NetworkReport& report) {
  const double median = median_rate(report.rates.pairs);
  for (const PairRate& pair : report.rates.pairs) {
    const double link = pair_link_rate(report.hosts, pair);
    const std::string between = fmt::format("between {} and {} only {} arrive", pair.first,
                                            pair.second, rate_text(pair.bytes_per_second));
    if (pair.bytes_per_second < kOfMedian * median) {
      report.warnings.push_back(fmt::format(
          "{}, where the median of neighbouring hosts is {}: look at their cables, ports and what "
          "else uses them, or leave them out",
          between, rate_text(median)));
    } else if (link > 0 && pair.bytes_per_second < kOfLink * link) {
      report.warnings.push_back(fmt::format(
          "{}, less than a third of the {} that their link has: look at what else uses it, and at "
          "the protocol that is chosen",
          between, rate_text(link)));
    }
  }
}

}  // namespace

NetworkReport report_network(std::vector<HostNetwork> hosts, NetworkRates rates,
                             std::string_view data_path) {
  NetworkReport report;
  report.hosts = std::move(hosts);
  report.rates = std::move(rates);
  if (report.hosts.size() < 2) {
    return report;
  }
  std::map<std::string, std::size_t> ways;  // and how many hosts use each
  for (const HostNetwork& network : report.hosts) {
    ++ways[used_text(network)];
  }
  std::vector<std::string> texts;
  texts.reserve(ways.size());
  for (const auto& [way, count] : ways) {
    texts.push_back(ways.size() == 1
                        ? way
                        : fmt::format("{} ({})", way, counted(static_cast<Index>(count), "host")));
  }
  report.text = fmt::format(
      "network: {} hosts, {} through {}{}; into a host {} in an all-gather, {} in an all-to-all",
      report.hosts.size(), data_path, fmt::join(texts, "; "),
      libraries_text(report.hosts.front().libraries), rate_text(report.rates.all_gather),
      rate_text(report.rates.all_to_all));
  report.faster = faster_text(report.hosts, data_path);
  if (!report.faster.empty()) {
    report.warnings.push_back(report.faster);
  }
  add_slow_pairs(report);
  return report;
}

NetworkReport check_network(MpiSession& session, Communicator& comm, Device device) {
  const std::vector<std::string> hosts = session.control().gather_text(session.host());
  if (std::all_of(hosts.begin(), hosts.end(),
                  [&](const std::string& host) { return host == hosts.front(); })) {
    return {};
  }
  enter_phase("network");
  NetworkRates rates =
      agree(session, [&] { return std::make_unique<Measurement>(comm, device, hosts); })->run();
  return report_network(gathered_hosts(session), std::move(rates), comm.data_path());
}

Json network_fields(const NetworkReport& report) {
  Json hosts = Json::array();
  for (const HostNetwork& network : report.hosts) {
    Json used = Json::array();
    for (const NetworkPort& port : used_ports(network)) {
      used.push_back({{"port", port.name},
                      {"fabric", port.fabric},
                      {"bytes_per_second", port.bytes_per_second}});
    }
    hosts.push_back({{"host", network.host},
                     {"ranks", network.ranks},
                     {"used", used},
                     {"libraries", network.libraries}});
  }
  Json pairs = Json::array();
  for (const PairRate& pair : report.rates.pairs) {
    pairs.push_back(
        {{"hosts", {pair.first, pair.second}}, {"bytes_per_second", pair.bytes_per_second}});
  }
  return {{"hosts", hosts},
          {"all_gather_bytes_per_second", report.rates.all_gather},
          {"all_to_all_bytes_per_second", report.rates.all_to_all},
          {"pairs", pairs},
          {"step_bytes", report.use.bytes},
          {"step_seconds", report.use.seconds}};
}

}  // namespace tessera
