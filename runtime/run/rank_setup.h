// What each rank of a run computes on, and whether the run fits there.
#pragma once

#include "collectives/communicator.h"
#include "collectives/mpi_session.h"
#include "model/model_config.h"
#include "runtime/launch/network_check.h"
#include "runtime/plan/memory_plan.h"
#include "runtime/run/config.h"

namespace tessera {

/// The device of this rank, in use. Collective. Throws DeviceError, agreed.
[[nodiscard]] Device choose_device(MpiSession& session, const RunConfig& options);
/// Every rank's part of the start-up table of --verbose. Collective.
void print_ranks(MpiSession& session, const Communicator& comm, Device device);
/// What is known of the ranks, and no reason to refuse them. Collective.
void warn_of_ranks(MpiSession& session, const RunConfig& options, Device device);

/// Warns where the disk of --out has less room than the first checkpoint takes. Of rank 0.
void warn_of_little_space(const RunConfig& options, std::size_t checkpoint_bytes);

/// The network between hosts, measured; warns of what is slow, and lets the plan's estimate have it.
/// Collective. Throws ConfigError, agreed, where --require-fast-network speaks against it.
[[nodiscard]] NetworkReport agreed_network(MpiSession& session, const RunConfig& options,
                                           Communicator& comm, Device device, MemoryPlan& plan);

/// Ranks of this host, and consecutive ranks that share a node.
struct NodeRanks {
  int here = 1;
  int consecutive = 1;
  int hosts = 1;
};
/// Collective.
[[nodiscard]] NodeRanks node_ranks_of(MpiSession& session, const RunConfig& options);

/// What a rank may take, and what this run will. Collective. Throws ConfigError, agreed, where it
/// does not fit.
[[nodiscard]] MemoryPlan agreed_plan(MpiSession& session, const RunConfig& options,
                                     const ModelConfig& config, Device device,
                                     const NodeRanks& ranks);

}  // namespace tessera
