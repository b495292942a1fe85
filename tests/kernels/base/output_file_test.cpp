#include "kernels/base/output_file.h"

#include <cerrno>
#include <cstdlib>

#include <boost/test/unit_test.hpp>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "kernels/base/read_error.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

namespace fs = std::filesystem;

OutputRules rules(bool takes_streams = false) {
  return {.option = "--out",
          .what = "a test's file",
          .is_ours = [](const fs::path& path) { return first_bytes(path, 5) == "ours:"; },
          .takes_streams = takes_streams};
}

// What is thrown; "" if nothing is.
template <typename Thrown>
std::string refusal(const fs::path& path, bool takes_streams = false) {
  try {
    write_output(path, rules(takes_streams), "ours: new");
    return {};
  } catch (const Thrown& error) {
    return error.message();
  }
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

ino_t inode_of(const fs::path& path) {
  struct stat status = {};
  BOOST_REQUIRE_EQUAL(::lstat(path.c_str(), &status), 0);
  return status.st_ino;
}

BOOST_AUTO_TEST_SUITE(output_file)

BOOST_AUTO_TEST_CASE(a_new_file_and_one_of_ours_are_written_and_no_other) {
  const TempFolder folder;
  BOOST_TEST(refusal<Error>(folder / "a") == "");
  BOOST_TEST(read_bytes(folder / "a") == "ours: new");
  write_bytes(folder / "a", "ours: old");
  BOOST_TEST(refusal<Error>(folder / "a") == "");
  BOOST_TEST(read_bytes(folder / "a") == "ours: new");
  for (const char* content : {"mine", ""}) {
    write_bytes(folder / "b", content);
    BOOST_TEST(refusal<ConfigError>(folder / "b") ==
               "--out " + (folder / "b").string() +
                   " exists and is not a test's file, so it is not replaced: give another "
                   "name, or remove it first");
    BOOST_TEST(read_bytes(folder / "b") == content);
  }
  BOOST_TEST(names_in(folder.path()) == (std::vector<std::string>{"a", "b"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(of_a_link_the_target_is_replaced_and_the_link_stays) {
  const TempFolder folder;
  fs::create_directory(folder / "elsewhere");
  write_bytes(folder / "elsewhere/a", "ours: old");
  write_bytes(folder / "elsewhere/b", "mine");
  fs::create_symlink("elsewhere/a", folder / "to_a");
  fs::create_symlink("elsewhere/b", folder / "to_b");
  fs::create_symlink("elsewhere/none", folder / "to_none");
  fs::create_symlink("loop", folder / "loop");
  BOOST_TEST(refusal<Error>(folder / "to_a") == "");
  BOOST_TEST(fs::is_symlink(folder / "to_a"));
  BOOST_TEST(read_bytes(folder / "elsewhere/a") == "ours: new");
  BOOST_TEST(refusal<ConfigError>(folder / "to_b") != "");
  BOOST_TEST(read_bytes(folder / "elsewhere/b") == "mine");
  BOOST_TEST(refusal<ConfigError>(folder / "to_none") ==
             "--out " + (folder / "to_none").string() +
                 " is a link to elsewhere/none, which is not there: name that file itself, or "
                 "remove the link");
  BOOST_TEST(refusal<ConfigError>(folder / "loop") != "");
  BOOST_TEST(names_in(folder / "elsewhere") == (std::vector<std::string>{"a", "b"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(devices_and_pipes_stay_what_they_are) {
  const TempFolder folder;
  const fs::path pipe = folder / "pipe";
  BOOST_REQUIRE_EQUAL(::mkfifo(pipe.c_str(), 0600), 0);
  const fs::path device = folder / "null";
  const bool has_device = ::mknod(device.c_str(), S_IFCHR | 0666, makedev(1, 3)) == 0;  // root only
  const fs::path socket = folder / "socket";
  const int listening = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  socket.string().copy(address.sun_path, sizeof address.sun_path - 1);
  BOOST_REQUIRE_EQUAL(
      ::bind(listening, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const ino_t pipe_inode = inode_of(pipe);
  BOOST_TEST(refusal<ConfigError>(pipe) ==
             "--out " + pipe.string() +
                 " is a named pipe: a test's file is written to a regular file");
  BOOST_TEST(refusal<ConfigError>(socket) != "");
  BOOST_TEST(refusal<ConfigError>(socket, true) != "");
  BOOST_TEST(refusal<ConfigError>("/dev/null") ==
             "--out /dev/null is a device: a test's file is written to a regular file");
  // nobody reads it: no waiting
  BOOST_TEST(refusal<WriteError>(pipe, true) ==
             "cannot write " + pipe.string() + ": nothing reads from it");
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  BOOST_TEST(refusal<Error>(pipe, true) == "");
  char got[16] = {};
  BOOST_TEST(::read(reader, got, sizeof got) == 9);
  BOOST_TEST(std::string(got) == "ours: new");
  BOOST_TEST(inode_of(pipe) == pipe_inode);
  BOOST_TEST(refusal<Error>("/dev/null", true) == "");
  if (has_device) {
    BOOST_TEST(refusal<ConfigError>(device) != "");
    BOOST_TEST(refusal<Error>(device, true) == "");
    BOOST_TEST(fs::is_character_file(device));
  }
  ::close(reader);
  ::close(listening);
}

// What can never be a file is the user's to change; what the system refuses may go well later.
BOOST_AUTO_TEST_CASE(
    names_that_cannot_be_files_are_config_errors_and_places_out_of_reach_write_errors) {
  const TempFolder folder;
  BOOST_TEST(refusal<ConfigError>(folder.path()) ==
             "--out " + folder.path().string() + " is a folder: give the name of a file");
  write_bytes(folder / "file", "ours: old");
  BOOST_TEST(refusal<ConfigError>(folder / "file/a").find("Not a directory") != std::string::npos);
  BOOST_TEST(refusal<WriteError>(folder / "no/a") ==
             "cannot write " + (folder / "no/a").string() + ": No such file or directory");
  BOOST_TEST(refusal<ConfigError>(folder / std::string(256, 'a')).find("File name too long") !=
             std::string::npos);
  BOOST_TEST(refusal<Error>(folder / std::string(255, 'a')) == "");
}

// What cannot be read may well be ours: no message claims that it is not.
BOOST_AUTO_TEST_CASE(a_file_that_cannot_be_read_is_not_called_another_one) {
  const TempFolder folder;
  write_bytes(folder / "a", "ours: old");
  const bool is_root = ::geteuid() == 0;  // whom permissions do not stop
  fs::permissions(folder.path(), fs::perms::all);
  fs::permissions(folder / "a", fs::perms::none);
  BOOST_REQUIRE(!is_root || ::seteuid(65534) == 0);
  const std::string reported = refusal<ReadError>(folder / "a");
  BOOST_REQUIRE(!is_root || ::seteuid(0) == 0);
  BOOST_TEST(reported == "cannot read " + (folder / "a").string() +
                             ": Permission denied; only a test's file of ours is replaced: make it "
                             "readable, give another name, or remove it first");
  fs::permissions(folder / "a", fs::perms::owner_all);
  BOOST_TEST(read_bytes(folder / "a") == "ours: old");
}

BOOST_AUTO_TEST_CASE(two_names_of_one_place_are_seen_before_it_exists) {
  const TempFolder folder;
  fs::create_directory_symlink(folder.path(), folder / "link");
  for (const fs::path& other : {folder / "./a", folder / "link/a"}) {
    BOOST_TEST(is_same_place(folder / "a", other), other);
  }
  BOOST_TEST(is_same_place("a", "./a"));
  BOOST_TEST(!is_same_place(folder / "a", folder / "b"));
  write_bytes(folder / "a", "x");
  fs::create_hard_link(folder / "a", folder / "b");
  BOOST_TEST(is_same_place(folder / "a", folder / "b"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
