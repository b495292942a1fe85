// What a program opens to read: regular files alone, without ever waiting, and what is commonly
// given by mistake called by its name.
#include "kernels/base/input_file.h"

#include <array>
#include <cerrno>
#include <fstream>
#include <string>
#include <string_view>

#include <boost/test/unit_test.hpp>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "tests/support/temp_folder.h"

namespace tessera {
namespace {

using test::TempFolder;
using namespace std::string_literals;

void write(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

void make_socket(const std::filesystem::path& path) {
  const int descriptor = ::socket(AF_UNIX, SOCK_STREAM, 0);
  BOOST_REQUIRE(descriptor >= 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.string().copy(address.sun_path, sizeof address.sun_path - 1);
  BOOST_REQUIRE(::bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) ==
                0);
  ::close(descriptor);
}

BOOST_AUTO_TEST_SUITE(input_file)

BOOST_AUTO_TEST_CASE(a_regular_file_opens_with_its_size) {
  const TempFolder folder;
  write(folder / "file", "12345");
  const OpenedFile file = open_regular_file(folder / "file", O_RDONLY);
  BOOST_REQUIRE(file.is_open());
  BOOST_TEST(file.size_bytes == 5);
  BOOST_TEST(file.failure.empty());
  ::close(file.descriptor);
}

// Each kind, for reading and for writing, directly and through a link; a pipe without a writer
// would make a plain open(2) wait without end.
BOOST_AUTO_TEST_CASE(special_files_are_named_and_not_opened) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "folder");
  BOOST_REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  make_socket(folder / "socket");
  const std::array<std::pair<std::filesystem::path, std::string>, 4> kinds = {{
      {folder / "folder", "a folder"},
      {folder / "pipe", "a named pipe"},
      {folder / "socket", "a socket"},
      {"/dev/null", "a device"},
  }};
  for (const auto& [path, kind] : kinds) {
    const std::filesystem::path link = folder / "link";
    std::filesystem::remove(link);
    std::filesystem::create_symlink(path, link);
    for (const auto& name : {path, link}) {
      for (const int flags : {O_RDONLY, O_RDWR, O_RDWR | O_CREAT}) {
        const OpenedFile file = open_regular_file(name, flags);
        BOOST_TEST(!file.is_open());
        BOOST_TEST(file.code == 0);
        BOOST_TEST(file.failure == "it is " + kind + ", and a regular file is needed here");
      }
      try {
        require_regular_file(name);
        BOOST_ERROR("nothing was thrown");
      } catch (const FormatError& error) {
        BOOST_TEST(error.message() == "cannot read " + name.string() + ": it is " + kind +
                                          ", and a regular file is needed here");
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_link_to_nothing_says_where_it_leads) {
  const TempFolder folder;
  BOOST_TEST(open_regular_file(folder / "none", O_RDONLY).failure == "No such file or directory");
  BOOST_TEST(open_regular_file(folder / "none", O_RDONLY).code == ENOENT);
  std::filesystem::create_symlink("../blobs/0123", folder / "cached");
  BOOST_TEST(open_regular_file(folder / "cached", O_RDONLY).failure ==
             "it is a link to ../blobs/0123, which does not exist");
  std::filesystem::create_symlink(".git/annex/objects/a/b/SHA256E-s9--0.bin", folder / "annexed");
  BOOST_TEST(open_regular_file(folder / "annexed", O_RDONLY).failure ==
             "it is a link of git-annex whose content is not here: fetch it with `git annex get`");
}

BOOST_AUTO_TEST_CASE(foreign_files_are_called_by_their_name) {
  const std::string tar = "model.safetensors"s + std::string(240, '\0') + "ustar\0"s + "00";
  const std::array<std::pair<std::string, std::string_view>, 22> rows = {{
      {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 988097824\n", "git-lfs"},
      {"/annex/objects/SHA256E-s9--0.safetensors\n", "git-annex"},
      {"PK\x03\x04\x14\0"s, "zip archive"},
      {"PK\x05\x06\0\0"s, "empty zip archive"},
      {"\x1f\x8b\x08\0\0"s, "compressed file or an archive"},
      {"BZh91AY", "compressed file or an archive"},
      {"\xfd"
       "7zXZ\0\0"s,
       "compressed file or an archive"},
      {"\x28\xb5\x2f\xfd\x04", "compressed file or an archive"},
      {"\x04\x22\x4d\x18\x64", "compressed file or an archive"},
      {"7z\xbc\xaf\x27\x1c", "compressed file or an archive"},
      {"Rar!\x1a\x07\x01", "compressed file or an archive"},
      {tar, "compressed file or an archive"},
      {"GGUF\x03\0\0\0"s, "llama.cpp"},
      {"\x80\x02}q\x01", "pickle of Python"},
      {"\x89HDF\r\n\x1a\n\0"s, "HDF5 file"},
      {"\x40\0\0\0\0\0\0\0{\"a\":"s, "safetensors file"},
      {"%PDF-1.7\n", "PDF"},
      {"PAR1\x15", "Parquet"},
      {"\n <!DOCTYPE html><html>", "web page"},
      {"\xef\xbb\xbf<HTML lang=en>", "web page"},
      {"<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code>", "web page"},
      {"Entry not found", "server's error message"},
  }};
  const TempFolder folder;
  for (const auto& [bytes, name] : rows) {
    BOOST_TEST(foreign_content(bytes).find(name) != std::string_view::npos, name);
    write(folder / "file", bytes);
    BOOST_TEST(foreign_content(File::open_read(folder / "file")) == foreign_content(bytes));
  }
  for (const std::string& plain :
       {""s, R"({"model_type": "llama"})"s, "Once upon a time"s, "version 2"s, "a < b"s}) {
    BOOST_TEST(foreign_content(plain).empty());
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera
