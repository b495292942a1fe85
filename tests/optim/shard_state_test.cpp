// What a rank owns of each unit, and which of it decays.
#include "optim/shard_state.h"

#include <boost/test/unit_test.hpp>

#include "model/model_config.h"

namespace tessera {
namespace {

ModelConfig tiny_config() {
  ModelConfig c = preset("tiny");
  c.vocab_size = 61;
  c.num_layers = 1;
  return c;
}

ShardStateOptions options(int rank, int world, std::size_t page_bytes) {
  ShardStateOptions o;
  o.rank = rank;
  o.world_size = world;
  o.paging.page_bytes = page_bytes;
  o.paging.page_all = page_bytes < 100'000;
  return o;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(shard_state)

BOOST_AUTO_TEST_CASE(more_ranks_than_a_unit_has_elements_leave_empty_slices) {
  ModelConfig config = tiny_config();
  config.hidden_size = 8;
  const ParamLayout layout(config);
  Index owned = 0;
  for (int rank = 0; rank < 8; ++rank) {
    Arena arena({}, ArenaMode::dry_run);
    const ShardState state(layout, options(rank, 8, std::size_t{24} << 10U), arena);
    owned += state.real_count(layout.head());
  }
  BOOST_CHECK_EQUAL(owned, 8);
}

BOOST_AUTO_TEST_CASE(norm_gains_do_not_decay_and_matrices_do) {
  const ParamLayout layout(tiny_config());
  Arena arena({}, ArenaMode::dry_run);
  ShardState state(layout, options(0, 1, std::size_t{24} << 10U), arena);
  Index decaying = 0;
  Index all = 0;
  for (const StatePage& page : state.pages()) {
    for (const DecayRun& run : page.decay_runs) {
      decaying += run.decays ? run.count : 0;
      all += run.count;
    }
  }
  Index matrices = 0;
  for (const ParamUnit& unit : layout.units()) {
    for (const ParamTensor& tensor : unit.tensors) {
      matrices += tensor.shape.rank() > 1 ? tensor.count() : 0;
    }
  }
  BOOST_CHECK_EQUAL(decaying, matrices);
  BOOST_CHECK_GE(all, layout.total_count());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera
