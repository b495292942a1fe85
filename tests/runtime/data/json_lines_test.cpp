#include "runtime/data/json_lines.h"

#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>
#include <zlib.h>

#include "kernels/base/error.h"
#include "kernels/base/read_error.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

using Lines = std::vector<std::string>;

Lines lines_of(const std::filesystem::path& path) {
  LineReader reader(path);
  Lines lines;
  while (const auto line = reader.next()) {
    lines.emplace_back(*line);
    BOOST_REQUIRE_EQUAL(reader.line_number(), std::ssize(lines));
  }
  return lines;
}

std::string gzip(std::string_view text) {
  z_stream state = {};
  BOOST_REQUIRE_EQUAL(
      deflateInit2(&state, Z_BEST_SPEED, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&state, text.size()) + 64, '\0');
  std::string in(text);
  state.next_in = reinterpret_cast<Bytef*>(in.data());
  state.avail_in = static_cast<uInt>(in.size());
  state.next_out = reinterpret_cast<Bytef*>(out.data());
  state.avail_out = static_cast<uInt>(out.size());
  BOOST_REQUIRE_EQUAL(deflate(&state, Z_FINISH), Z_STREAM_END);
  out.resize(state.total_out);
  deflateEnd(&state);
  return out;
}

// What `run` throws as FormatError; empty: nothing.
template <typename Run>
std::string refusal(const Run& run) {
  try {
    run();
  } catch (const FormatError& error) {
    return error.message();
  }
  return {};
}

std::string bad(std::string_view line) {
  return refusal([&] { static_cast<void>(parse_record(line)); });
}

BOOST_AUTO_TEST_SUITE(json_lines)

BOOST_AUTO_TEST_CASE(lines_come_as_they_are_without_line_ends_and_byte_order_mark) {
  const TempFolder folder;
  const auto path = folder / "a.jsonl";
  const std::vector<std::pair<std::string, Lines>> cases = {
      {"", {}},
      {"\n", {""}},
      {"a", {"a"}},
      {"a\n", {"a"}},
      {"a\r\nb\r\n", {"a\r", "b\r"}},
      {"\xef\xbb\xbf{}\n\xef\xbb\xbf\n", {"{}", "\xef\xbb\xbf"}},
      {"\n\nc", {"", "", "c"}}};
  for (const auto& [content, expected] : cases) {
    write_bytes(path, content);
    BOOST_TEST(lines_of(path) == expected, boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(lines_longer_than_blocks_come_whole) {
  const TempFolder folder;
  const auto path = folder / "a.jsonl";
  Lines expected;
  std::string content;
  for (std::size_t length : {1U, 262143U, 262144U, 262145U, 3'000'000U, 0U, 5U}) {
    expected.emplace_back(length, static_cast<char>('a' + expected.size()));
    content += expected.back() + "\n";
  }
  write_bytes(path, content);
  BOOST_CHECK(lines_of(path) == expected);
  LineReader reader(path, 262144);
  for (int i = 0; i < 3; ++i) {
    BOOST_REQUIRE(reader.next());
  }
  BOOST_TEST(refusal([&] { static_cast<void>(reader.next()); }) ==
             path.string() + ": line 4 has more than 262144 bytes, the most that are read");
}

BOOST_AUTO_TEST_CASE(gzip_files_are_read_member_by_member_and_refused_where_they_are_damaged) {
  const TempFolder folder;
  const auto path = folder / "a.jsonl.gz";
  std::string long_line;
  while (long_line.size() < 1'000'000) {
    long_line += std::to_string(long_line.size() * 7919);
  }
  const std::string members = gzip("{\"text\": \"a\"}\n") + gzip(long_line + "\nlast");
  write_bytes(path, members);
  BOOST_CHECK((lines_of(path) == Lines{"{\"text\": \"a\"}", long_line, "last"}));
  write_bytes(path, members.substr(0, members.size() - 3));
  BOOST_TEST(refusal([&] { static_cast<void>(lines_of(path)); }) ==
             path.string() + " is truncated: its compressed data ends too early");
  write_bytes(path, gzip("a\n") + "something else");
  BOOST_TEST(refusal([&] {
               static_cast<void>(lines_of(path));
             }).starts_with(path.string() + " is damaged"));
  std::string flipped = members;
  flipped[members.size() / 2] = static_cast<char>(flipped[members.size() / 2] ^ 0x10);
  write_bytes(path, flipped);
  BOOST_TEST(!refusal([&] { static_cast<void>(lines_of(path)); }).empty());
}

BOOST_AUTO_TEST_CASE(records_keep_their_keys_in_order_and_their_text) {
  auto record = parse_record(
      " {\"b\": 1, \"text\": \"x\\u0000y\\ud83d\\ude00\\n\", \"a\": [1.5, {\"c\": null}]}\r");
  BOOST_REQUIRE(record);
  BOOST_TEST(record->dump() ==
             "{\"b\":1,\"text\":\"x\\u0000y\xf0\x9f\x98\x80\\n\",\"a\":[1.5,{\"c\":null}]}");
  BOOST_TEST(take_text(*record, "text") == std::string("x\0y\xf0\x9f\x98\x80\n", 8));
  BOOST_CHECK(!parse_record(" \t\r"));
  BOOST_CHECK(!parse_record(""));
}

BOOST_AUTO_TEST_CASE(bad_lines_are_refused_with_the_reason) {
  BOOST_TEST(bad("{\"a\": \"\xff\"}") == "is not UTF-8 at byte 8");
  BOOST_TEST(bad("{\"a\": \"\xc3") == "ends within a character of UTF-8");
  BOOST_TEST(bad(std::string_view("{\"a\": 1}\0", 9)) == "has a NUL at byte 9");
  BOOST_TEST(bad("[1]") == "is not a JSON object");
  BOOST_TEST(bad("text") == "is not a JSON object");
  BOOST_TEST(bad("{\"a\": 1} {}") ==
             "is not one JSON object: its text ends, and more follows at byte 10");
  BOOST_TEST(bad("{\"a\": 1").starts_with("is not one JSON object: something is missing"));
  BOOST_TEST(bad("{\"a\": \"\\ud800\"}").starts_with("is not one JSON object"));
  BOOST_TEST(bad("{\"a\": 1, \"b\": {\"a\": 1, \"c\": 2}, \"a\": 2}") ==
             "has the key \"a\" twice in one object");
  BOOST_TEST(bad("{\"b\": {\"c\": 1, \"\\u0063\": 2}}") == "has the key \"c\" twice in one object");
  BOOST_TEST(bad("{\"a\": 123456789012345678901}") ==
             "has a number of more than 64 bits: 123456789012345678901");
  BOOST_TEST(bad("{\"a\": 1e999}") == "has a number of more than 64 bits");
  const std::string deep = "{\"a\":" + std::string(100000, '[');
  BOOST_TEST(bad(deep) == "is nested deeper than 64");
}

BOOST_AUTO_TEST_CASE(a_field_that_is_missing_or_not_a_text_is_named) {
  const auto text_of = [](std::string_view line, std::string_view field) {
    auto record = parse_record(line);
    return refusal([&] { static_cast<void>(take_text(*record, field)); });
  };
  BOOST_TEST(text_of("{\"content\": \"a\", \"id\": 1}", "text") ==
             "has no field \"text\"; its fields are content, id");
  BOOST_TEST(text_of("{}", "text") == "has no fields");
  BOOST_TEST(text_of("{\"text\": [\"a\"]}", "text") ==
             "has a field \"text\" that is not a text but of the type array");
}

BOOST_AUTO_TEST_CASE(names_of_json_lines) {
  for (const char* name : {"a.jsonl", "b/a.jsonl.gz", "a.b.jsonl.zst", "a.ndjson"}) {
    BOOST_TEST(has_json_lines_name(name), name);
  }
  for (const char* name : {"a.json", "a.gz", "jsonl", "a.jsonl.txt", "a.txt.gz"}) {
    BOOST_TEST(!has_json_lines_name(name), name);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
