// Which rank owns which elements of a run of parameters (contract C-ZERO-001).
#pragma once

#include <cstddef>

#include "kernels/device/stream.h"
#include "optim/state_layout.h"

namespace tessera {

/// One rank's contiguous range [param_start, param_end) of `total_params` flattened elements.
///
/// Over the ranks 0 .. world_size-1 the ranges cover [0, total_params), none overlap, and each has
/// floor(total_params / world_size) elements or one more: the first (total_params mod world_size)
/// ranks take the extra one. The runtime always calls it with a unit's padded count, so that every
/// slice is equal and aligned; a world larger than the total leaves empty ranges at the end.
struct OptimizerShard {
  int rank;
  int world_size;
  Index param_start;  // first element owned
  Index param_end;    // one past the last
  Index total_params;

  /// Throws ContractError unless 0 <= rank < world_size and total_params >= 0.
  [[nodiscard]] static OptimizerShard for_rank(int rank, int world_size, Index total_params);

  [[nodiscard]] Index shard_size() const noexcept { return param_end - param_start; }
  [[nodiscard]] bool owns_param(Index element) const noexcept;
  /// Bytes of this shard's optimizer state, master weights included.
  [[nodiscard]] std::size_t shard_memory_bytes(const StateLayout& layout) const noexcept;
  /// The same without sharding.
  [[nodiscard]] std::size_t full_memory_bytes(const StateLayout& layout) const noexcept;
  /// Share of the state that this rank does not store: 0.5 for two ranks, 0 for an empty model.
  [[nodiscard]] double memory_savings() const noexcept;
};

/// Elements; also the block of the norm's partial sums.
inline constexpr Index kShardAlignment = 1024;
/// Smallest multiple of world_size * kShardAlignment that is at least `count`.
[[nodiscard]] Index padded_count(Index count, int world_size);

}  // namespace tessera
