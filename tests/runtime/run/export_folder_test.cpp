// Whose the folder of --export is, and what a finished export replaces in it.
#include "runtime/run/export_folder.h"

#include <fstream>
#include <set>

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

using Path = std::filesystem::path;

void write(const Path& file, const std::string& text) {
  std::ofstream(file) << text;
}

std::string read(const Path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::set<std::string> names_in(const Path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

class Bench {
 public:
  Bench() { std::filesystem::create_directory(path()); }
  [[nodiscard]] Path path() const { return scratch_ / "model"; }
  [[nodiscard]] ExportFolder of(const std::string& run_id, const std::string& run = "run") const {
    return {path(), {run_id, scratch_ / run}};
  }
  /// An export of these files, each of which holds the step.
  static void put(const ExportFolder& folder, Index step,
                  std::initializer_list<const char*> names) {
    const Path partial = folder.make_partial(step);
    for (const char* name : names) {
      write(partial / name, std::to_string(step));
    }
    folder.replace(partial, step);
  }

 private:
  TempFolder scratch_;
};

using Names = std::set<std::string>;

}  // namespace

BOOST_AUTO_TEST_SUITE(export_folder)

BOOST_AUTO_TEST_CASE(a_new_folder_is_claimed_and_holds_no_step_before_an_export) {
  const Bench bench;
  const ExportFolder folder = bench.of("a");
  folder.claim();
  BOOST_TEST(!folder.exported_step());
  bench.put(folder, 4, {"config.json", "model.safetensors"});
  BOOST_TEST(folder.exported_step().value() == 4);
  folder.claim();  // as the run that continues does
  BOOST_TEST(folder.exported_step().value() == 4);
}

BOOST_AUTO_TEST_CASE(an_export_replaces_the_one_before_and_nothing_else) {
  const Bench bench;
  const ExportFolder folder = bench.of("a");
  folder.claim();
  bench.put(folder, 4, {"config.json", "model.safetensors", "chat_template.jinja"});
  write(bench.path() / "README.md", "mine");
  bench.put(folder, 8, {"config.json", "model-1.safetensors", "model.safetensors"});
  BOOST_TEST((names_in(bench.path()) == Names{".tessera-export", "README.md", "config.json",
                                              "model-1.safetensors", "model.safetensors"}));
  BOOST_TEST(read(bench.path() / "config.json") == "8");
  BOOST_TEST(read(bench.path() / "model.safetensors") == "8");
  BOOST_TEST(read(bench.path() / "README.md") == "mine");
  BOOST_TEST(folder.exported_step().value() == 8);
}

BOOST_AUTO_TEST_CASE(what_died_on_the_way_is_not_an_export_and_is_written_again) {
  const Bench bench;
  const ExportFolder folder = bench.of("a");
  folder.claim();
  bench.put(folder, 4, {"config.json", "model.safetensors", "vocab.json"});
  std::filesystem::remove(bench.path() / "config.json");
  std::filesystem::create_directory(bench.path() / ".partial-00000008.0a1b2c3d");
  write(bench.path() / ".partial-00000008.0a1b2c3d/model.safetensors", "half");
  BOOST_TEST(!folder.exported_step());
  folder.claim();
  BOOST_TEST(
      (names_in(bench.path()) == Names{".tessera-export", "model.safetensors", "vocab.json"}));
  bench.put(folder, 4, {"config.json", "model.safetensors"});
  BOOST_TEST(
      (names_in(bench.path()) == Names{".tessera-export", "config.json", "model.safetensors"}));
}

BOOST_AUTO_TEST_CASE(what_others_put_there_is_refused) {
  const Bench bench;
  const auto refuses = [&](const ExportFolder& folder, const std::string& part) {
    BOOST_CHECK_EXCEPTION(folder.require_ours(), ConfigError, [&](const ConfigError& error) {
      return error.message().find(part) != std::string::npos;
    });
  };
  bench.of("a").claim();
  BOOST_CHECK_NO_THROW(bench.of("b").claim());  // that run exported nothing
  bench.put(bench.of("b"), 4, {"config.json"});
  BOOST_CHECK_NO_THROW(bench.of("b").require_ours());
  refuses(bench.of("a"), "holds an export of another run");
  refuses(bench.of("b", "branch"), "holds an export of another run");  // --resume of the same run
  for (const char* text : {"", "{", "[]", R"({"run_id": "b"})", R"({"run_id": 7, "files": 1})"}) {
    write(bench.path() / ".tessera-export", text);
    refuses(bench.of("b"), "is not empty and does not hold an export of this run");
  }
  const ExportFolder at_out(bench.path(), {"b", bench.path() / "../model"});
  refuses(at_out, "is --out too");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
