// Contract C-ZERO-001: the ranks' ranges are contiguous, cover everything once, and differ by one
// element at most, the first ranks taking the extra ones.
#include "optim/optimizer_shard.h"

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"
#include "model/model_config.h"
#include "model/param_layout.h"

namespace tessera {
namespace {

constexpr int kLargestWorld = 17;

void check_partition(int world_size, Index total) {
  Index end = 0;
  for (int rank = 0; rank < world_size; ++rank) {
    const OptimizerShard shard = OptimizerShard::for_rank(rank, world_size, total);
    BOOST_REQUIRE_EQUAL(shard.param_start, end);
    BOOST_REQUIRE_EQUAL(shard.shard_size(),
                        total / world_size + (rank < total % world_size ? 1 : 0));
    BOOST_REQUIRE_EQUAL(shard.owns_param(shard.param_start), shard.shard_size() > 0);
    BOOST_REQUIRE(!shard.owns_param(shard.param_end));
    end = shard.param_end;
  }
  BOOST_REQUIRE_EQUAL(end, total);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(optimizer_shard)

BOOST_AUTO_TEST_CASE(ranges_cover_every_total_once_on_1_to_17_ranks) {
  for (int world = 1; world <= kLargestWorld; ++world) {
    for (const Index k : {1, 3, 1000}) {
      for (const Index total : {k * world - 1, k * world, k * world + 1}) {
        check_partition(world, total);
      }
    }
    check_partition(world, world - 1);
    check_partition(world, 0);
  }
}

BOOST_AUTO_TEST_CASE(units_of_real_models_are_cut_into_equal_aligned_slices) {
  for (const std::string& name : preset_names()) {
    ModelConfig config = preset(name);
    config.vocab_size = config.vocab_size == 0 ? 257 : config.vocab_size;
    const ParamLayout layout(config);
    BOOST_CHECK_EQUAL(layout.total_count(), parameter_count(config));
    for (int world = 1; world <= kLargestWorld; ++world) {
      for (const ParamUnit& unit : layout.units()) {
        const Index padded = padded_count(unit.count, world);
        check_partition(world, padded);
        BOOST_REQUIRE_EQUAL(padded % (world * kShardAlignment), 0);
        BOOST_REQUIRE_GE(padded, unit.count);
        BOOST_REQUIRE_LT(padded - unit.count, world * kShardAlignment);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_layer_of_qwen3_4b_has_100930816_elements) {
  const ParamLayout layout(preset("qwen3-4b"));
  BOOST_CHECK_EQUAL(layout.unit(1).count, 100'930'816);
}

BOOST_AUTO_TEST_CASE(ranks_and_worlds_out_of_range_are_refused) {
  BOOST_CHECK_THROW((void)OptimizerShard::for_rank(-1, 2, 10), ContractError);
  BOOST_CHECK_THROW((void)OptimizerShard::for_rank(2, 2, 10), ContractError);
  BOOST_CHECK_THROW((void)OptimizerShard::for_rank(0, 0, 10), ContractError);
  BOOST_CHECK_THROW((void)OptimizerShard::for_rank(0, 1, -1), ContractError);
}

BOOST_AUTO_TEST_CASE(two_ranks_save_half_of_the_state) {
  const StateLayout master = {{.array = StateArray::master}};
  const StateLayout moments = {{.array = StateArray::exp_avg}, {.array = StateArray::exp_avg_sq}};
  const OptimizerShard shard = OptimizerShard::for_rank(0, 2, 1000);
  BOOST_CHECK_EQUAL(shard.shard_memory_bytes(moments), 4000U);
  BOOST_CHECK_EQUAL(shard.full_memory_bytes(moments), 8000U);
  BOOST_CHECK_EQUAL(shard.shard_memory_bytes(master), 2000U);
  BOOST_CHECK_EQUAL(shard.memory_savings(), 0.5);
  BOOST_CHECK_EQUAL(OptimizerShard::for_rank(0, 2, 0).memory_savings(), 0.0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera
