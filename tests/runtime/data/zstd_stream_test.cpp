// Files of Zstandard through runtime/data/byte_stream.h.
#include <string>

#include <boost/test/unit_test.hpp>
#include <zstd.h>

#include "kernels/base/error.h"
#include "runtime/data/json_lines.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

std::string zstd(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 1));
  return out;
}

std::string all_of(const std::filesystem::path& path) {
  LineReader reader(path);
  std::string text;
  try {
    while (const auto line = reader.next()) {
      text += *line;
      text += '|';
    }
  } catch (const FormatError& error) {
    return error.message();
  }
  return text;
}

BOOST_AUTO_TEST_SUITE(zstd_stream)

BOOST_AUTO_TEST_CASE(frames_are_read_one_after_the_other_and_refused_where_they_are_damaged) {
  const TempFolder folder;
  const auto path = folder / "a.jsonl.zst";
  std::string random(700'000, '\0');
  std::uint32_t state = 1;
  for (char& c : random) {
    state = state * 1664525U + 1013904223U;
    c = static_cast<char>('a' + (state >> 24U) % 26);
  }
  const std::string frames = zstd("one\n" + random + "\n") + zstd("three");
  write_bytes(path, frames);
  BOOST_CHECK(all_of(path) == "one|" + random + "|three|");
  write_bytes(path, frames.substr(0, frames.size() - 2));
  BOOST_TEST(all_of(path) == path.string() + " is truncated: its compressed data ends too early");
  write_bytes(path, frames + "rubbish");
  BOOST_TEST(all_of(path).starts_with(path.string() + " cannot be decompressed"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
