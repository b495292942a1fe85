// One line a rank on where it runs, for --verbose: what to look at when ranks share cores or a GPU,
// or talk over the wrong network.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/device/device_backend.h"

namespace tessera {

class MpiSession;

/// Numbers in ascending order as ranges: {0, 1, 2, 5} is "0-2,5".
[[nodiscard]] std::string ranges_text(std::span<const int> numbers);

/// The processors that this process may use, in ascending order; empty where that is not known.
[[nodiscard]] std::vector<int> usable_cores();

/// Ranks of one node, where every node has as many consecutive ranks (the last may have fewer);
/// otherwise 1. `hosts`: of each rank, in rank order.
[[nodiscard]] int consecutive_ranks(std::span<const std::string> hosts);

/// This rank: number, host, device, the cores that it may use, the IPv4 interfaces of the host that
/// are up (but loopback), and what the environment says about the choice among them.
[[nodiscard]] std::string describe_rank(const MpiSession& session, Device device);

}  // namespace tessera
