#include "optim/optimizer_shard.h"

#include <algorithm>
#include <string>

#include "kernels/base/error.h"

namespace tessera {

OptimizerShard OptimizerShard::for_rank(int rank, int world_size, Index total_params) {
  TESSERA_REQUIRE(world_size >= 1, "world size " + std::to_string(world_size) + " is below 1");
  TESSERA_REQUIRE(rank >= 0 && rank < world_size,
                  "rank " + std::to_string(rank) + " of " + std::to_string(world_size) + " ranks");
  TESSERA_REQUIRE(total_params >= 0, "a negative number of parameters");
  const Index each = total_params / world_size;
  const Index extra = total_params % world_size;
  const Index begin = rank * each + std::min<Index>(rank, extra);
  return {rank, world_size, begin, begin + each + (rank < extra ? 1 : 0), total_params};
}

bool OptimizerShard::owns_param(Index element) const noexcept {
  return element >= param_start && element < param_end;
}

std::size_t OptimizerShard::shard_memory_bytes(const StateLayout& layout) const noexcept {
  return layout.bytes(shard_size());
}

std::size_t OptimizerShard::full_memory_bytes(const StateLayout& layout) const noexcept {
  return layout.bytes(total_params);
}

double OptimizerShard::memory_savings() const noexcept {
  return total_params == 0
             ? 0
             : 1 - static_cast<double>(shard_size()) / static_cast<double>(total_params);
}

Index padded_count(Index count, int world_size) {
  TESSERA_REQUIRE(count >= 0 && world_size >= 1, "a count and a world size that make sense");
  const Index unit = world_size * kShardAlignment;
  return (count + unit - 1) / unit * unit;
}

}  // namespace tessera
