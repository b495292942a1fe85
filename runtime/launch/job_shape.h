// How a batch system has laid out the ranks: GPUs that no rank has, GPUs that several share, ranks
// on processors far from their GPU or on too few, NCCL kept from a host's links. Nothing of it makes a run wrong; each makes it
// slow, and one line of its script changes it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/device/device_backend.h"

namespace tessera {

class MpiSession;

/// Where one rank is.
struct RankShape {
  int rank = 0;
  std::string host;
  std::string bus_id;           // of its GPU; empty without one
  int gpus_of_host = 0;         // that this rank, or the batch system, knows of
  int threads = 1;              // that compute in it
  std::vector<int> cores;       // that it may use; empty: not known
  std::vector<int> near_cores;  // of the NUMA node of its GPU; empty: not known
  /// Variables that keep NCCL from the links and the memory of its host: NCCL_P2P_DISABLE,
  /// NCCL_SHM_DISABLE.
  std::vector<std::string> nccl_disabled = {};
  friend bool operator==(const RankShape&, const RankShape&) = default;
};

/// This rank's. `threads` is --threads of a CPU rank.
[[nodiscard]] RankShape shape_of_rank(const MpiSession& session, Device device, int threads);

/// One line of text and back, to be gathered.
[[nodiscard]] std::string to_text(const RankShape& shape);
[[nodiscard]] RankShape rank_shape(const std::string& text);

/// A sentence for each thing that makes the job slow, with the setting of Slurm and mpirun that
/// changes it; the first host that shows it speaks for all.
[[nodiscard]] std::vector<std::string> job_shape_texts(std::span<const RankShape> ranks);

}  // namespace tessera
