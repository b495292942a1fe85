// At the start of a run on several hosts: which network its ranks use, how fast it is, and whether
// a faster one is there. Half a second of the collectives that training makes, on the same path.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "collectives/communicator.h"
#include "runtime/launch/network_ports.h"

namespace tessera {

class MpiSession;

/// What is known of one host.
struct HostNetwork {
  std::string host;
  std::vector<NetworkPort> ports;  // active ones
  PortsInUse in_use;               // of its first rank, after the measurement
  int ranks = 0;
  std::vector<std::string> libraries = {};  // of its first rank: network_libraries
};

/// Two neighbouring hosts that exchanged data alone, all ranks of both.
struct PairRate {
  std::string first;
  std::string second;
  double bytes_per_second = 0;  // into each of them
};

/// Bytes a second that a host gets from others, all its ranks together; of an all-gather, whose
/// slices are the same for all of them, each slice once.
struct NetworkRates {
  double all_gather = 0;
  double all_to_all = 0;
  std::vector<PairRate> pairs;  // none where hosts have no equal, consecutive ranks
};

/// What a step needs of it, of each rank.
struct NetworkUse {
  double bytes = 0;    // to other hosts
  double seconds = 0;  // at the measured rates, hidden or not
};

/// The report on a network; empty where the run is on one host.
struct NetworkReport {
  std::string text;                   // for the start of a run
  std::vector<std::string> warnings;  // that tell of something slow
  std::string faster;                 // the one of a faster network that is not used; empty: none
  std::vector<HostNetwork> hosts;
  NetworkRates rates;
  NetworkUse use;
};

/// What `hosts` and `rates` come to. `data_path`: Communicator::data_path(), how data moves.
///   * A host with an RDMA port of which no process has the device open, or with an interface that
///     is twice as fast as the one in use: `faster`, with the settings that change it.
///   * A pair of hosts below half of the pairs' median, or a third of what its slower link can
///     carry: a warning.
[[nodiscard]] NetworkReport report_network(std::vector<HostNetwork> hosts, NetworkRates rates,
                                           std::string_view data_path);

/// Measures and gathers: the same answer on every rank, without texts where all ranks are on one
/// host. Takes about half a second, up to two where
/// little arrives, and 128 MiB on the device for that time. Collective.
[[nodiscard]] NetworkReport check_network(MpiSession& session, Communicator& comm, Device device);

/// The fields of the event "network" (runtime/monitor/metrics.md).
[[nodiscard]] nlohmann::ordered_json network_fields(const NetworkReport& report);

}  // namespace tessera
