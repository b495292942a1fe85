// State that some ranks wrote from pages of one size is the state of any others, bit by bit:
// through ShardWriter, the commit and CheckpointReader.
#include <algorithm>
#include <list>

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"
#include "runtime/run/resume.h"
#include "tests/runtime/checkpoint/saves.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

constexpr std::size_t kSmallPage = std::size_t{24} << 10U;
constexpr std::size_t kLargePage = std::size_t{8} << 20U;

// Packed: beside parameters of f32 with values of bf16.
enum class Masters : std::uint8_t { whole, packed };

struct Ranks {
  Ranks(int world_size, std::size_t page_bytes, Masters masters = Masters::whole) {
    for (int rank = 0; rank < world_size; ++rank) {
      ShardStateOptions options;
      if (masters == Masters::packed) {
        options.layout = state_layout(
            {.param_values = DType::bf16, .packs_masters = true, .adamw = {}, .sgd = {}});
        options.params = [&own = params_of_rank(world_size)](UnitId unit) {
          return own.at(static_cast<std::size_t>(unit)).view();
        };
      }
      options.rank = rank;
      options.world_size = world_size;
      options.paging.page_bytes = page_bytes;
      options.paging.page_all = page_bytes == kSmallPage;
      shards.push_back(std::make_unique<ShardState>(layout, options, arena));
    }
  }

  ParamLayout layout{small_config()};
  Arena arena{Device{}, ArenaMode::allocate};
  std::list<std::vector<DeviceBuffer>> params;  // of each rank, by unit, where masters are packed
  std::vector<std::unique_ptr<ShardState>> shards;

 private:
  std::vector<DeviceBuffer>& params_of_rank(int world_size) {
    std::vector<DeviceBuffer>& own = params.emplace_back();
    for (const ParamUnit& unit : layout.units()) {
      own.push_back(arena.allocate(MemoryKind::device, DType::f32,
                                   {padded_count(unit.count, world_size) / world_size}, "params"));
    }
    return own;
  }
};

// Calls visit(unit, array, slice) for all that a rank owns.
template <typename Visit>
void for_each_slice(const ShardState& shard, const ShardSpec& spec, Visit visit) {
  for (const StateArraySpec& array : shard.numbers().arrays()) {
    for (UnitId unit = 0; unit < shard.layout().unit_count(); ++unit) {
      const UnitSlice& slice = spec.slices.at(static_cast<std::size_t>(unit));
      BOOST_REQUIRE_EQUAL(slice.end - slice.begin, shard.real_count(unit));
      visit(unit, array.array, slice);
    }
  }
}

TensorView view_of(std::vector<float>& values) {
  return {values.data(), DType::f32, Shape{std::ssize(values)}, Device{}};
}

// A checkpoint of as many ranks, with numbers of `values_of` in all three arrays.
std::filesystem::path save_state(const Ranks& ranks, const std::filesystem::path& run) {
  SaveOptions options;
  options.world_size = std::ssize(ranks.shards);
  const ManifestInfo info = info_of(options);
  make_run_folder(run);
  CommitRequest request{run,  make_save_folder(run, {info.save_id, info.step}),
                        info, options.table,
                        {},   options.retention};
  for (const std::unique_ptr<ShardState>& shard : ranks.shards) {
    const ShardSpec spec = shard_spec(options.table.units, shard->rank(), shard->world_size());
    ShardWriter writer(
        {request.save_folder, {info.save_id, info.step}, spec, shard->numbers(), options.hook});
    writer.create();
    for_each_slice(*shard, spec, [&](UnitId unit, StateArray array, const UnitSlice& slice) {
      std::vector<float> values = values_of(options.table, array, slice, options.step);
      shard->write(unit, array, 0, view_of(values));
      std::fill(values.begin(), values.end(), -1.0F);
      shard->read(unit, array, 0, view_of(values));
      writer.write(array, slice.offset, values);
    });
    request.shards.push_back(writer.finish());
  }
  return commit_checkpoint(request, options.hook).folder;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(shard_round_trip)

BOOST_AUTO_TEST_CASE(state_of_any_ranks_and_pages_is_read_by_any_others) {
  const SaveOptions options;
  using enum Masters;
  for (const auto& [writers, readers, before, after] :
       {std::tuple{3, 2, whole, whole}, std::tuple{1, 5, whole, packed},
        std::tuple{8, 1, packed, whole}, std::tuple{2, 3, packed, packed}}) {
    const TempFolder folder;
    CheckpointReader reader(save_state(Ranks(writers, kSmallPage, before), folder / "run"));
    Ranks ranks(readers, kLargePage, after);
    for (const std::unique_ptr<ShardState>& shard : ranks.shards) {
      for (UnitId unit = 0; unit < ranks.layout.unit_count(); ++unit) {
        std::vector<float> ones(static_cast<std::size_t>(shard->range(unit).shard_size()), 1.0F);
        for (const StateArraySpec& spec : shard->numbers().arrays()) {
          shard->write(unit, spec.array, 0, view_of(ones));
        }
      }
      read_state(reader, *shard);
      const ShardSpec spec = shard_spec(options.table.units, shard->rank(), readers);
      for_each_slice(*shard, spec, [&](UnitId unit, StateArray array, const UnitSlice& slice) {
        std::vector<float> expected = values_of(options.table, array, slice, options.step);
        const auto owned = static_cast<std::size_t>(shard->range(unit).shard_size());
        expected.resize(owned, 0.0F);  // padding
        std::vector<float> values(owned, -1.0F);
        shard->read(unit, array, 0, view_of(values));
        BOOST_TEST((std::memcmp(values.data(), expected.data(), owned * sizeof(float)) == 0),
                   array_name(array) << " of " << slice.unit << " on rank " << shard->rank());
      });
    }
  }
}

BOOST_AUTO_TEST_CASE(a_missing_shard_is_an_error_and_never_zeros) {
  const TempFolder folder;
  const std::filesystem::path step = save_state(Ranks(2, kSmallPage), folder / "run");
  CheckpointReader reader(step);
  std::filesystem::remove(step / reader.shards()[1].file);
  Ranks ranks(1, kLargePage);
  BOOST_CHECK_THROW(read_state(reader, *ranks.shards[0]), FormatError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
