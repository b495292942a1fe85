// What W ranks wrote, any number of ranks read, bit by bit.
#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"
#include "runtime/checkpoint/manifest.h"
#include "tests/runtime/checkpoint/saves.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

BOOST_AUTO_TEST_SUITE(round_trip)

BOOST_AUTO_TEST_CASE(any_number_of_ranks_reads_what_any_number_wrote) {
  const std::vector<Index> ranks = {1, 2, 3, 4, 5, 8};
  const TempFolder folder;
  for (const Index writers : ranks) {
    SaveOptions options;
    options.step = writers;
    options.world_size = writers;
    const CommitResult result = save(folder.path(), options);
    BOOST_TEST(result.problems.empty());
    BOOST_TEST(result.folder == folder / step_folder_name(writers));
    CheckpointReader reader(result.folder);
    BOOST_TEST(reader.info().world_size == writers);
    for (const Index readers : ranks) {
      BOOST_TEST(compare(reader, options.table, readers, options.step) == "");
    }
    reader.verify();
    BOOST_TEST(reader.find_damage().empty());
  }
  BOOST_TEST(slurp(folder / "LATEST") == "step-00000008\n");
}

BOOST_AUTO_TEST_CASE(arrays_of_several_blocks_are_read_from_any_place) {
  // The embedding alone has 9.4 M elements: three blocks of 16 MiB of one rank, two of each of two.
  SaveOptions options;
  options.table = small_table(390001, 24);
  options.piece = 300001;
  for (const Index writers : {1, 2}) {
    const TempFolder folder;
    options.world_size = writers;
    CheckpointReader reader(save(folder.path(), options).folder);
    BOOST_TEST(compare(reader, options.table, 1, options.step) == "");
    BOOST_TEST(compare(reader, options.table, 3, options.step) == "");
    const UnitSlice across{"embedding", kBlockElements - 5, kBlockElements + 7, 0};
    std::vector<float> values(12);
    reader.read(StateArray::exp_avg_sq, across.unit, across.begin, values);
    BOOST_TEST(values == values_of(options.table, StateArray::exp_avg_sq, across, options.step));
  }
}

BOOST_AUTO_TEST_CASE(everything_the_manifest_says_comes_back) {
  const TempFolder folder;
  SaveOptions options;
  options.world_size = 3;
  ManifestInfo info = info_of(options);
  info.parent_save_id = "x";
  info.updates -= 3;
  info.skipped = 3;
  info.epoch = 5;
  WriteRequest request{
      folder / "run", info, options.table,
      [&](StateArray array, const ParamRow& param, Index begin, std::span<float> values) {
        const std::vector<float> all =
            values_of(options.table, array,
                      {param.unit, param.offset + begin,
                       param.offset + begin + static_cast<Index>(values.size()), 0},
                      options.step);
        std::copy(all.begin(), all.end(), values.begin());
      }};
  CheckpointReader reader(write_checkpoint(request).folder);
  BOOST_TEST((reader.info() == info));
  BOOST_TEST(compare(reader, options.table, 2, options.step) == "");
  BOOST_TEST(reader.table().params.size() == options.table.params.size());
  for (std::size_t i = 0; i < options.table.params.size(); ++i) {
    const ParamRow& expected = options.table.params[i];
    const ParamRow& row = reader.table().params[i];
    BOOST_TEST(row.name == expected.name);
    BOOST_TEST(row.unit == expected.unit);
    BOOST_TEST(row.offset == expected.offset);
    BOOST_TEST((row.shape == expected.shape));
    BOOST_TEST(row.alias_of == expected.alias_of);
  }
  BOOST_TEST(reader.table().params.back().alias_of == "embedding.weight");
}

// An attribute of HDF5 holds less than 64 KiB.
BOOST_AUTO_TEST_CASE(texts_of_any_length_come_back) {
  for (const std::size_t length : {59998U, 59999U, 60000U, 65536U, 3000000U}) {
    Manifest manifest{{}, small_table(5, 8), {}};
    SaveOptions options;
    options.table = manifest.table;
    manifest.info = info_of(options);
    manifest.info.world_size = 1;
    manifest.info.options_json = R"({"data":")" + std::string(length - 14, 'o') + "\xe2\x82\xac\"}";
    BOOST_REQUIRE(manifest.info.options_json.size() == length);
    manifest.shards.push_back(
        {shard_file_name(0, 1), shard_spec(manifest.table.units, 0, 1), 1, 2, {0, 0, 0}});
    const Manifest read = parse_manifest(manifest_image(manifest), "manifest.h5");
    BOOST_TEST((read.info == manifest.info), length);
  }
}

BOOST_AUTO_TEST_CASE(a_save_without_moments_reads_zeros) {
  const TempFolder folder;
  SaveOptions options;
  options.step = 0;
  options.optimizer.reset();
  CheckpointReader reader(save(folder.path(), options).folder);
  BOOST_TEST(reader.arrays().size() == 1U);
  BOOST_TEST(compare(reader, options.table, 3, options.step) == "");
  reader.verify();
}

BOOST_AUTO_TEST_CASE(a_rank_without_any_element_writes_an_empty_shard) {
  // Each unit has less than two times 1024 elements but one, so ranks 5 and above own nothing of
  // most.
  const TempFolder folder;
  SaveOptions options;
  options.table = small_table(5, 8);
  options.world_size = 17;
  CheckpointReader reader(save(folder.path(), options).folder);
  BOOST_TEST(reader.shards().back().spec.count() == 0);
  BOOST_TEST(compare(reader, options.table, 2, options.step) == "");
  reader.verify();
}

BOOST_AUTO_TEST_CASE(folders_with_odd_names_work) {
  const TempFolder folder;
  const std::filesystem::path run = folder / "r\xC3\xBCn %d 'x' \"y\"";
  CheckpointReader reader(save(run, SaveOptions{}).folder);
  BOOST_TEST(compare(reader, small_table(), 1, 42) == "");
}

BOOST_AUTO_TEST_CASE(numbers_that_are_not_finite_are_counted) {
  const TempFolder folder;
  SaveOptions options;
  options.is_poisoned = true;
  const CheckpointReader reader(save(folder.path(), options).folder);
  BOOST_TEST(reader.info().nonfinite_params == 2);  // one a rank
  BOOST_TEST(reader.shards()[0].nonfinite[0] == 1);
  BOOST_TEST(reader.shards()[0].nonfinite[1] == 0);
}

// These saves' moments are any f32 numbers, which a run with moments in bf16 never saves.
BOOST_AUTO_TEST_CASE(moments_in_fewer_bits_are_named_and_looked_at) {
  for (const MomentType moments : {MomentType::bf16, MomentType::bits8}) {
    const TempFolder folder;
    SaveOptions options;
    options.moments = moments;
    CheckpointReader reader(save(folder.path(), options).folder);
    BOOST_TEST((reader.info().moments == moments));
    const std::vector<std::string> damages = reader.find_damage();
    BOOST_TEST_REQUIRE(!damages.empty());
    BOOST_TEST(damages[0].find("which moments in " + std::string(moment_name(moments)) +
                               " cannot hold") != std::string::npos,
               damages[0]);
  }
}

BOOST_AUTO_TEST_CASE(pieces_out_of_order_and_missing_ones_are_refused) {
  const TempFolder folder;
  const ShardSpec spec = shard_spec(small_table().units, 0, 1);
  const SaveIdentity identity{new_uuid(), 1};
  ShardWriter writer({folder.path(), identity, spec, state_layout(OptimizerKind::adamw), {}});
  writer.create();
  const std::vector<float> values(10);
  BOOST_CHECK_THROW(writer.write(StateArray::master, 1, values), ContractError);
  writer.write(StateArray::master, 0, values);
  BOOST_CHECK_THROW(writer.write(StateArray::master, 0, values), ContractError);
  BOOST_CHECK_THROW(writer.write(StateArray::master, 10,
                                 std::vector<float>(static_cast<std::size_t>(spec.count()))),
                    ContractError);
  BOOST_CHECK_THROW(static_cast<void>(writer.finish()), ContractError);
}

BOOST_AUTO_TEST_CASE(boxes_cover_a_range_once_and_are_few) {
  for (const Shape& shape :
       {Shape{7}, Shape{3, 5}, Shape{2, 3, 4}, Shape{2, 1, 3, 2}, Shape{1, 6}}) {
    const Index count = shape.count();
    for (Index begin = 0; begin <= count; ++begin) {
      for (Index end = begin; end <= count; ++end) {
        Index position = begin;
        const std::vector<Box> boxes = cut_into_boxes(shape, begin, end);
        BOOST_REQUIRE_LE(boxes.size(), static_cast<std::size_t>(2 * shape.rank() - 1));
        for (const Box& box : boxes) {
          // a box of our kind is a run: its first element and its size say it all
          Index first = 0;
          Index size = 1;
          for (int axis = 0; axis < shape.rank(); ++axis) {
            const auto i = static_cast<std::size_t>(axis);
            first = first * shape[axis] + box.start[i];
            size *= box.count[i];
            BOOST_REQUIRE_LE(box.start[i] + box.count[i], shape[axis]);
          }
          BOOST_REQUIRE_EQUAL(first, position);
          BOOST_REQUIRE_EQUAL(box.begin, position);
          position += size;
        }
        BOOST_REQUIRE_EQUAL(position, end);
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
