// Other people's programs see a checkpoint's parameters under their names.
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

#include "tests/runtime/checkpoint/saves.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

bool has_program(const std::string& test_command) {
  if (std::system((test_command + " > /dev/null 2>&1").c_str()) == 0) {
    return true;
  }
  BOOST_TEST_MESSAGE("skipped: '" << test_command << "' does not run here");
  return false;
}

/// A dataset's numbers as h5dump writes them into a binary file.
std::vector<float> dumped(const TempFolder& folder, const std::filesystem::path& file,
                          const std::string& dataset) {
  const std::string out = (folder / "dump").string();
  const std::string command =
      fmt::format("h5dump -d '{}' -b LE -o '{}' '{}' > /dev/null", dataset, out, file.string());
  BOOST_REQUIRE_MESSAGE(std::system(command.c_str()) == 0, command);
  const std::string content = slurp(out);
  std::vector<float> values(content.size() / sizeof(float));
  std::memcpy(values.data(), content.data(), content.size());
  return values;
}

void require_same_bits(const std::vector<float>& actual, const std::vector<float>& expected,
                       const std::string& what) {
  BOOST_REQUIRE_EQUAL(actual.size(), expected.size());
  BOOST_TEST(std::memcmp(actual.data(), expected.data(), actual.size() * sizeof(float)) == 0, what);
}

BOOST_AUTO_TEST_SUITE(tools)

BOOST_AUTO_TEST_CASE(h5dump_shows_each_parameter_in_its_shape) {
  if (!has_program("h5dump --version")) {
    return;
  }
  const TempFolder folder;
  SaveOptions options;
  options.world_size = 3;
  const std::filesystem::path saved = save(folder / "rün %d", options).folder;
  // A moved folder shows the same.
  const std::filesystem::path moved = folder / "moved";
  std::filesystem::rename(saved, moved);
  for (const StateArraySpec& spec : state_layout(*options.optimizer).arrays()) {
    const StateArray array = spec.array;
    for (const ParamRow& param : options.table.params) {
      const std::string path = fmt::format("{}/{}", array_group(array), param.name);
      const UnitSlice slice{param.unit, param.offset, param.offset + param.count(), 0};
      require_same_bits(dumped(folder, moved / kManifestName, path),
                        values_of(options.table, array, slice, options.step), path);
    }
  }
  const std::string header = (folder / "header").string();
  BOOST_REQUIRE(std::system(fmt::format("h5dump -H -d /params/block.1.mlp.gate_up '{}' > '{}'",
                                        (moved / kManifestName).string(), header)
                                .c_str()) == 0);
  BOOST_TEST(slurp(header).find("SIMPLE { ( 100, 24 )") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_missing_shard_shows_as_nan_not_as_zeros) {
  if (!has_program("h5dump --version")) {
    return;
  }
  const TempFolder folder;
  SaveOptions options;
  const std::filesystem::path saved = save(folder.path(), options).folder;
  std::filesystem::remove(saved / shard_file_name(1, 2));
  // Rank 1 has the end of block.0.
  const std::vector<float> values =
      dumped(folder, saved / kManifestName, "/params/block.0.mlp.down");
  BOOST_TEST(std::all_of(values.begin(), values.end(), [](float v) { return std::isnan(v); }));
}

BOOST_AUTO_TEST_CASE(h5py_reads_parameters_and_the_table) {
  const char* given = std::getenv("TESSERA_PYTHON");  // one that has h5py, if python3 has not
  const std::string python = given == nullptr ? "python3" : given;
  if (!has_program(python + " -c 'import h5py'")) {
    return;
  }
  const TempFolder folder;
  SaveOptions options;
  options.is_poisoned = true;
  const std::filesystem::path saved = save(folder.path(), options).folder;
  spill(folder / "check.py", R"(
import sys, h5py, numpy
with h5py.File(sys.argv[1]) as f:
    assert f.attrs["step"] == 42 and f.attrs["world_size"] == 2, dict(f.attrs)
    for row in f["table"]:
        name = row["name"].decode()
        w = f["params"][name]
        assert w.shape == tuple(row["shape"][: row["ndim"]]) and w.dtype == numpy.float32, name
    w = f["params/embedding.weight"][...]
    assert numpy.isnan(w).sum() == 1 and numpy.isnan(w[0, 0])
    assert (f["params/head.weight"][1:] == w[1:]).all()
    assert f["optim/exp_avg/block.1.mlp.down"].shape == (24, 50)
)");
  BOOST_TEST(std::system(fmt::format("{} '{}' '{}'", python, (folder / "check.py").string(),
                                     (saved / kManifestName).string())
                             .c_str()) == 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
