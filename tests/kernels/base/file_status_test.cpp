// Which folders to write to are refused before anything is made.
#include "kernels/base/file_status.h"

#include <filesystem>
#include <string>

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

namespace fs = std::filesystem;

// What the ConfigError says; "" if there is none.
std::string refused(const fs::path& folder) {
  try {
    require_room_for_folder(folder, "--out X");
    return {};
  } catch (const ConfigError& error) {
    return error.message();
  }
}

BOOST_AUTO_TEST_SUITE(file_status)

BOOST_AUTO_TEST_CASE(a_folder_or_a_place_for_one_is_taken_as_it_is_written) {
  const TempFolder folder;
  fs::create_directory(folder / "real");
  fs::create_directory_symlink("real", folder / "link");
  for (const char* name : {"", "real", "real/", "real/.", "real/../real", "link", "link/new", "new",
                           "new/", "new/../other", "a/b/c"}) {
    BOOST_CHECK_NO_THROW(require_room_for_folder(folder / name, "--out X"));
  }
  for (const char* name : {"", ".", "..", "./", "/", "new-and-relative", "new/and/relative/"}) {
    BOOST_CHECK_NO_THROW(require_room_for_folder(name, "--out X"));
  }
  BOOST_TEST(!fs::exists(folder / "new"));
}

BOOST_AUTO_TEST_CASE(what_cannot_be_a_folder_is_refused_by_what_is_in_its_way) {
  const TempFolder folder;
  write_bytes(folder / "file", "x");
  fs::create_symlink("nowhere", folder / "dangling");
  fs::create_symlink("loop", folder / "loop");
  const std::string file = (folder / "file").string();
  const std::string dangling = (folder / "dangling").string();
  BOOST_TEST(refused(folder / "file") == "--out X is there and is not a folder: give another one");
  for (const char* name : {"file/a", "file/a/b/", "real/../file/a"}) {
    BOOST_TEST(refused(folder / name) == "--out X: " + file + " is not a folder: give another one");
  }
  for (const char* name : {"dangling", "dangling/a"}) {
    BOOST_TEST(refused(folder / name) ==
               "--out X: " + dangling +
                   " is a link to nowhere, which is not there: make that folder, or remove the "
                   "link");
  }
  BOOST_TEST(refused(folder / "loop") != "");
  BOOST_TEST(refused(folder / std::string(256, 'a')) ==
             "--out X: File name too long: give another folder");
  BOOST_TEST(refused("/dev/null") == "--out X is there and is not a folder: give another one");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
