// State that is saved on some ranks and pages is loaded on any others: the interfaces of
// state_io.h, over a map in memory.
#include "optim/shard_state.h"

#include <map>
#include <numeric>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "kernels/device/error.h"
#include "model/model_config.h"

namespace tessera {
namespace {

class MemoryState final : public StateWriter, public StateReader {
 public:
  void put_int(std::string_view name, std::int64_t value) override {
    integers_[std::string(name)] = value;
  }
  void put_real(std::string_view name, double value) override { reals_[std::string(name)] = value; }
  void put_slice(std::string_view name, Index begin, Index total, ConstTensorView values) override {
    std::vector<float>& array = arrays_[std::string(name)];
    array.resize(static_cast<std::size_t>(total), -1.0F);
    std::copy_n(data_as<float>(values), values.count(), array.begin() + begin);
  }
  std::int64_t get_int(std::string_view name) override { return integers_.at(std::string(name)); }
  double get_real(std::string_view name) override { return reals_.at(std::string(name)); }
  void get_slice(std::string_view name, Index begin, Index total, TensorView values) override {
    const auto found = arrays_.find(std::string(name));
    if (found == arrays_.end() || static_cast<Index>(found->second.size()) != total) {
      throw FormatError("no array " + std::string(name), TESSERA_HERE);
    }
    std::copy_n(found->second.begin() + begin, values.count(), data_as<float>(values));
  }
  [[nodiscard]] const std::map<std::string, std::vector<float>>& arrays() const { return arrays_; }

 private:
  std::map<std::string, std::int64_t> integers_;
  std::map<std::string, double> reals_;
  std::map<std::string, std::vector<float>> arrays_;
};

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

BOOST_AUTO_TEST_CASE(state_saved_by_three_ranks_is_loaded_by_two_with_other_pages) {
  const ParamLayout layout(tiny_config());
  MemoryState saved;
  for (int rank = 0; rank < 3; ++rank) {
    Arena arena({}, ArenaMode::allocate);
    ShardState state(layout, options(rank, 3, std::size_t{24} << 10U), arena);
    state.initialize([&](UnitId unit, Index begin, std::span<float> values) {
      std::iota(values.begin(), values.end(), static_cast<float>(Index{1000} * unit + begin % 997));
    });
    state.save(saved);
  }
  BOOST_CHECK_EQUAL(saved.arrays().size(), 3U * static_cast<std::size_t>(layout.unit_count()));
  MemoryState again;
  for (int rank = 0; rank < 2; ++rank) {
    Arena arena({}, ArenaMode::allocate);
    ShardState state(layout, options(rank, 2, std::size_t{8} << 20U), arena);
    state.load(saved);
    state.save(again);
  }
  BOOST_CHECK(saved.arrays() == again.arrays());
}

BOOST_AUTO_TEST_CASE(missing_state_is_an_error_and_never_zeros) {
  const ParamLayout layout(tiny_config());
  Arena arena({}, ArenaMode::allocate);
  ShardState state(layout, options(0, 1, std::size_t{24} << 10U), arena);
  MemoryState nothing;
  BOOST_CHECK_THROW(state.load(nothing), FormatError);
}

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
