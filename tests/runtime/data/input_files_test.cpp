#include "runtime/data/input_files.h"

#include <boost/test/unit_test.hpp>
#include <sys/stat.h>

#include "kernels/base/read_error.h"
#include "tests/runtime/data/token_files.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

using Path = std::filesystem::path;

std::vector<Path> paths_of(const InputFiles& found) {
  std::vector<Path> paths;
  for (const InputFiles::File& file : found.files) {
    paths.push_back(file.path);
  }
  return paths;
}

BOOST_AUTO_TEST_SUITE(input_files)

BOOST_AUTO_TEST_CASE(files_are_listed_in_order_and_folders_by_name) {
  const TempFolder folder;
  for (const char* name : {"z.txt", "d/b.txt", "d/a/c.txt", "d/B.txt", "a.txt"}) {
    std::filesystem::create_directories((folder / name).parent_path());
    write_bytes(folder / name, "x");
  }
  std::filesystem::create_symlink("b.txt", folder / "d/link.txt");
  const InputFiles found = list_files({folder / "z.txt", folder / "d", folder / "a.txt"});
  const std::vector<Path> expected = {folder / "z.txt",      folder / "d/B.txt",
                                      folder / "d/a/c.txt",  folder / "d/b.txt",
                                      folder / "d/link.txt", folder / "a.txt"};
  BOOST_TEST((paths_of(found) == expected));
  BOOST_TEST(found.files.front().was_named);
  BOOST_TEST(!found.files[1].was_named);
  BOOST_TEST(found.left_out.count() == 0);
  BOOST_CHECK_THROW(static_cast<void>(list_files({folder / "no"})), MissingError);
}

BOOST_AUTO_TEST_CASE(links_to_folders_are_followed_once) {
  const TempFolder folder;
  const Path in = folder / "in";
  std::filesystem::create_directories(in / "z");
  std::filesystem::create_directories(folder / "elsewhere/deep");
  write_bytes(in / "z/a.txt", "x");
  write_bytes(folder / "elsewhere/b.txt", "x");
  write_bytes(folder / "elsewhere/deep/c.txt", "x");
  std::filesystem::create_directory_symlink(folder / "elsewhere", in / "linked");
  std::filesystem::create_directory_symlink(folder / "elsewhere", in / "linked_again");
  std::filesystem::create_directory_symlink("..", in / "z/up");                   // a cycle
  std::filesystem::create_directory_symlink(in, folder / "elsewhere/deep/back");  // and a long one
  std::filesystem::create_directory_symlink("z", in / "a_link_before_it");
  const InputFiles found = list_files({in});
  const std::vector<Path> expected = {in / "linked/b.txt", in / "linked/deep/c.txt",
                                      in / "z/a.txt"};
  BOOST_TEST((paths_of(found) == expected));
  BOOST_REQUIRE_EQUAL(found.left_out.rows().size(), 1U);
  BOOST_TEST(found.left_out.rows()[0].reason == "a link to a folder that is read already");
  BOOST_TEST(found.left_out.rows()[0].count == 4);
}

BOOST_AUTO_TEST_CASE(what_is_no_file_is_counted) {
  const TempFolder folder;
  write_bytes(folder / "a.txt", "x");
  std::filesystem::create_symlink("nowhere", folder / "b");
  std::filesystem::create_symlink("c", folder / "c");  // to itself
  BOOST_REQUIRE_EQUAL(::mkfifo((folder / "d").c_str(), 0600), 0);
  std::filesystem::create_symlink("d", folder / "e");
  std::filesystem::create_symlink("/dev/null", folder / "f");
  const InputFiles found = list_files({folder.path()});
  BOOST_TEST(found.files.size() == 1U);
  std::string reported;
  for (const LeftOut::Row& row : found.left_out.rows()) {
    reported += fmt::format("{} {} {}; ", row.count, row.reason, row.first.filename().string());
  }
  BOOST_TEST(reported == "2 a link to nothing b; 2 a named pipe d; 1 a device f; ");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
