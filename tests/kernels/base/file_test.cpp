// File: whole reads and writes at a place, and one error class for each reason not to read.
#include "kernels/base/file.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"
#include "kernels/base/read_error.h"
#include "tests/support/temp_folder.h"

namespace {

using tessera::DamageError;
using tessera::File;
using tessera::FormatError;
using tessera::MissingError;
using tessera::ReadError;
using tessera::WriteError;
using tessera::test::TempFolder;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(file)

BOOST_AUTO_TEST_CASE(a_file_that_is_not_there_is_one_class_of_exit_status_2) {
  const TempFolder folder;
  const auto refusal = [](const MissingError& error) { return error.exit_status() == 2; };
  BOOST_CHECK_EXCEPTION(static_cast<void>(File::open_read(folder / "no")), MissingError, refusal);
  BOOST_CHECK_EXCEPTION(static_cast<void>(tessera::read_whole_file(folder / "no/no", 1)),
                        MissingError, refusal);
  BOOST_CHECK_EXCEPTION(static_cast<void>(tessera::list_folder(folder / "no")), MissingError,
                        refusal);
}

BOOST_AUTO_TEST_CASE(what_is_not_a_regular_file_or_too_long_is_an_error_of_the_format) {
  const TempFolder folder;
  const auto refusal = [](const FormatError& error) {
    return error.exit_status() == 3 && dynamic_cast<const ReadError*>(&error) == nullptr;
  };
  BOOST_CHECK_EXCEPTION(static_cast<void>(File::open_read(folder.path())), FormatError, refusal);
  tessera::write_whole_file(folder / "three", bytes_of("abc"));
  BOOST_CHECK_EXCEPTION(static_cast<void>(tessera::read_whole_file(folder / "three", 2)),
                        FormatError, refusal);
  BOOST_TEST(tessera::read_whole_file(folder / "three", 3) == "abc");
}

BOOST_AUTO_TEST_CASE(a_read_beyond_the_end_is_damage_and_read_up_to_stops_there) {
  const TempFolder folder;
  tessera::write_whole_file(folder / "five", bytes_of("12345"));
  const File file = File::open_read(folder / "five");
  std::array<char, 4> part = {};
  file.read_at(1, std::as_writable_bytes(std::span(part)));
  BOOST_TEST(std::string(part.data(), part.size()) == "2345");
  BOOST_TEST(file.read_up_to(3, std::as_writable_bytes(std::span(part))) == 2U);
  BOOST_TEST(file.read_up_to(9, std::as_writable_bytes(std::span(part))) == 0U);
  BOOST_CHECK_EXCEPTION(file.read_at(2, std::as_writable_bytes(std::span(part))), DamageError,
                        [&](const DamageError& error) {
                          return error.message() == (folder / "five").string() +
                                                        " ends at byte 5, 1 bytes are missing: it "
                                                        "is truncated";
                        });
}

BOOST_AUTO_TEST_CASE(an_unnamed_file_keeps_what_is_written_and_leaves_no_name) {
  const TempFolder folder;
  File file = File::create_unnamed(folder.path(), folder / "final");
  file.write_at(3, bytes_of("xyz"));
  std::array<char, 6> all = {};
  file.read_at(0, std::as_writable_bytes(std::span(all)));
  BOOST_TEST(std::string(all.data(), all.size()) == std::string("\0\0\0xyz", 6));
  BOOST_TEST(file.path() == folder / "final");
  BOOST_TEST(std::filesystem::is_empty(folder.path()));
  BOOST_CHECK_THROW(static_cast<void>(File::create_unnamed(folder / "no", folder / "final")),
                    WriteError);
}

BOOST_AUTO_TEST_CASE(a_stamp_changes_with_the_content) {
  const TempFolder folder;
  File file = File::create(folder / "file");
  BOOST_TEST(file.stamp().bytes == 0U);
  file.write_at(0, bytes_of("1"));
  const tessera::FileStamp stamp = file.stamp();
  BOOST_TEST(stamp.bytes == 1U);
  std::filesystem::last_write_time(
      folder / "file", std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  BOOST_TEST(file.stamp().modified > stamp.modified);
}

BOOST_AUTO_TEST_SUITE_END()
