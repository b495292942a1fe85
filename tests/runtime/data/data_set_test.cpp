// Which token files a word of --data names, in which order, and how files of a set are mixed.
#include "runtime/data/data_set.h"

#include <fstream>

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"
#include "runtime/data/data_loader.h"
#include "tests/runtime/data/token_files.h"
#include "tests/support/check.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

std::vector<std::string> names(const DataSet& set) {
  std::vector<std::string> all;
  for (const std::filesystem::path& file : set.files) {
    all.push_back(file.lexically_relative(set.path.parent_path()).string());
  }
  return all;
}

template <typename Function>
std::string refusal(const Function& function) {
  try {
    function();
  } catch (const ConfigError& error) {
    return error.message();
  }
  return {};
}

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << text;
}

BOOST_AUTO_TEST_SUITE(data_set)

BOOST_AUTO_TEST_CASE(a_folder_is_its_token_files_by_name) {
  const TempFolder folder;
  const std::filesystem::path data = folder / "data";
  std::filesystem::create_directories(data / "more");
  for (const char* name : {"b.h5", "a.h5", "more/z", "a.held-out.h5", "10.h5"}) {
    write_tokens(data / name, {counting(20)});
  }
  write(data / "notes.txt", "a.h5");
  for (const char* text : {"data", "data/"}) {
    const DataSet set = parse_data_set((folder / text).string());
    std::vector<std::string> found;
    for (const auto& file : set.files) {
      found.push_back(file.lexically_relative(data).string());
    }
    const std::vector<std::string> expected = {"10.h5", "a.h5", "b.h5", "more/z"};
    BOOST_TEST(found == expected, boost::test_tools::per_element());
    BOOST_TEST(!set.weight);
    BOOST_REQUIRE(set.notes.size() == 2U);
    BOOST_TEST(set.notes[0].ends_with(": 1 file of tokenize --held-out is left out"));
    BOOST_TEST(set.notes[1].ends_with(": 1 file that is not a token file is left out"));
  }
  BOOST_TEST(*parse_data_set((folder / "data").string() + ":0.25").weight == 0.25);
  write(data / "broken.h5", "not it");
  BOOST_TEST(refusal([&] {
               (void)parse_data_set(data.string());
             }).starts_with((data / "broken.h5").string() + " is not a token file, and is in the"));
  std::filesystem::create_directories(folder / "empty");
  BOOST_TEST(refusal([&] { (void)parse_data_set((folder / "empty").string()); })
                 .ends_with("there is no token file in this folder but 0 held-out files; make them "
                            "with tokenize"));
}

BOOST_AUTO_TEST_CASE(a_list_is_its_lines_from_its_folder_on) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "data");
  for (const char* name : {"b.h5", "data/a.h5", "x.list"}) {
    write_tokens(folder / name, {counting(20)});
  }
  write(folder / "all.list", "# a comment\nb.h5\r\n\ndata/a.h5\n" + (folder / "b.h5").string());
  const DataSet set = parse_data_set((folder / "all.list").string() + ":2");
  const std::vector<std::string> expected = {"b.h5", "data/a.h5", "b.h5"};
  BOOST_TEST(names(set) == expected, boost::test_tools::per_element());
  BOOST_TEST(*set.weight == 2);
  // a token file of that name is one
  BOOST_TEST(parse_data_set((folder / "x.list").string()).files.front() == folder / "x.list");
  const auto refused = [&](const std::string& lines) {
    write(folder / "bad.list", lines);
    return refusal([&] { (void)parse_data_set((folder / "bad.list").string()); });
  };
  const std::string list = "--data " + (folder / "bad.list").string();
  BOOST_TEST(refused("\nno.h5") == list + " line 2: " + (folder / "no.h5").string() +
                                       " is not there; give a token file a line, as a path from "
                                       "the list's folder on");
  BOOST_TEST(refused("data").starts_with(list + " line 1: " + (folder / "data").string() +
                                         " is a folder"));
  BOOST_TEST(refused("# nothing\n") == list + ": the list names no file; give a token file a line");
}

BOOST_AUTO_TEST_CASE(files_that_are_not_alike_are_refused_with_both_names) {
  const TempFolder folder;
  write_tokens(folder / "a.h5", {counting(20)});
  write_tokens(folder / "b.h5", {counting(20)}, 256, std::vector<std::uint8_t>(20, 1));
  write_tokens(folder / "c.h5", {counting(20, 100)}, 300);
  write_tokens(folder / "d.h5", {counting(30)});
  DataSet set;
  set.path = folder.path();
  const auto refused = [&](const char* other) {
    const TokenFile first(folder / "a.h5");
    const TokenFile second(folder / other);
    return refusal([&] { require_alike(set, {&first, &second}); });
  };
  const auto both = [&](const char* other, const std::string& what) {
    return (folder / "a.h5").string() + " and " + (folder / other).string() + " of --data " +
           folder.path().string() + " are not one data set: " + what +
           "; tokenise them alike, or give them one by one";
  };
  BOOST_TEST(refused("d.h5").empty());
  BOOST_TEST(refused("b.h5") ==
             both("b.h5", "the second has a mask of targets, and the other none"));
  BOOST_TEST(refused("c.h5") == both("c.h5", "their vocabularies have 256 and 300 tokens"));
}

BOOST_AUTO_TEST_CASE(files_of_a_set_share_its_weight_by_size) {
  const TempFolder folder;
  write_tokens(folder / "a.h5", {counting(81)});   // 10 sequences of 8
  write_tokens(folder / "b.h5", {counting(241)});  // 30
  write_tokens(folder / "c.h5", {counting(81)});
  std::vector<std::vector<std::int32_t>> blocks;
  const auto share_of = [&](const std::vector<TokenSource>& files, std::size_t file) {
    const DataLoader loader({.files = files,
                             .sequence_length = 8,
                             .micro_batch = 1,
                             .global_batch = 1,
                             .seed = 1,
                             .rank = 0,
                             .world_size = 1,
                             .vocab = 256},
                            [&](Index elements, std::string_view) {
                              blocks.emplace_back(static_cast<std::size_t>(elements));
                              return TensorView{blocks.back().data(), DType::i32, {elements}, {}};
                            });
    constexpr Index kMany = 4000;
    Index count = 0;
    for (const SequenceId& id : loader.sequence_ids(0, kMany)) {
      count += id.file == file ? 1 : 0;
    }
    return static_cast<double>(count) / kMany;
  };
  const auto path = [&](const char* name) { return folder / name; };
  const std::vector<TokenSource> sets = {
      {path("a.h5"), 1.0, 0}, {path("b.h5"), 1.0, 0}, {path("c.h5"), 3.0, 1}};
  BOOST_TEST(share_of(sets, 0) == 0.25 * 0.25, boost::test_tools::tolerance(0.02));
  BOOST_TEST(share_of(sets, 1) == 0.25 * 0.75, boost::test_tools::tolerance(0.02));
  BOOST_TEST(share_of(sets, 2) == 0.75, boost::test_tools::tolerance(0.02));
  // one by one each has its own
  const std::vector<TokenSource> alone = {
      {path("a.h5"), 1.0, 0}, {path("b.h5"), 1.0, 1}, {path("c.h5"), 3.0, 2}};
  BOOST_TEST(share_of(alone, 1) == 0.2, boost::test_tools::tolerance(0.02));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
