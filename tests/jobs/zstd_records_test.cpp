// tokenize on many files of Zstandard.
#include <boost/test/unit_test.hpp>
#include <fmt/format.h>
#include <zstd.h>

#include "runtime/data/token_file.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

BOOST_AUTO_TEST_SUITE(zstd_records)

BOOST_AUTO_TEST_CASE(a_hundred_files_of_zstandard_are_read_in_the_order_of_their_names) {
  constexpr int kFiles = 100;
  constexpr int kLines = 50;
  const TempFolder folder;
  std::filesystem::create_directories(folder / "in");
  std::string expected;
  for (int file = 0; file < kFiles; ++file) {
    std::string lines;
    for (int line = 0; line < kLines; ++line) {
      const std::string text = fmt::format("file {} line {}", file, line);
      lines += fmt::format("{{\"id\": {}, \"content\": \"{}\"}}\n", line, text);
      expected += text;
    }
    std::string packed(ZSTD_compressBound(lines.size()), '\0');
    packed.resize(ZSTD_compress(packed.data(), packed.size(), lines.data(), lines.size(), 3));
    write_bytes(folder / fmt::format("in/{:03}.jsonl.zst", file), packed);
  }
  const auto out = folder / "x.h5";
  const RunResult result = run_program(
      "tokenize", {"--field", "content", "--out", out.string(), (folder / "in").string()});
  BOOST_REQUIRE_MESSAGE(result.status == 0, result.err);
  const TokenFile tokens(out);
  BOOST_TEST(tokens.document_count() == kFiles * kLines);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens.token_count()));
  static_cast<void>(tokens.read_tokens(0, ids));
  BOOST_CHECK(std::string(ids.begin(), ids.end()) == expected);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
