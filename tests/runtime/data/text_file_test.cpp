#include "runtime/data/text_file.h"

#include <array>
#include <random>

#include <boost/test/unit_test.hpp>

#include "runtime/data/text_kind.h"
#include "tests/runtime/data/token_files.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

// By decoding: the definition rather than the table.
bool is_text_by_definition(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto first = static_cast<unsigned char>(text[at]);
    if (first == 0) {
      return false;
    }
    const std::size_t length = first < 0x80            ? 1
                               : (first >> 5U) == 0x6  ? 2
                               : (first >> 4U) == 0xE  ? 3
                               : (first >> 3U) == 0x1E ? 4
                                                       : 0;
    if (length == 0 || at + length > text.size()) {
      return false;
    }
    std::uint32_t code = length == 1 ? first : first & (0xFFU >> (length + 1));
    for (std::size_t i = 1; i < length; ++i) {
      const auto byte = static_cast<unsigned char>(text[at + i]);
      if ((byte & 0xC0U) != 0x80U) {
        return false;
      }
      code = code << 6U | (byte & 0x3FU);
    }
    constexpr std::array<std::uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
    if (code < kLeast[length] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
      return false;
    }
    at += length;
  }
  return true;
}

bool is_text(std::string_view text) {
  Utf8Checker checker;
  checker.add(text);
  return checker.is_whole();
}

BOOST_AUTO_TEST_SUITE(text_file)

BOOST_AUTO_TEST_CASE(all_strings_of_up_to_three_bytes_are_judged_as_by_decoding) {
  std::string text;
  for (unsigned a = 0; a < 256; ++a) {
    text.assign(1, static_cast<char>(a));
    BOOST_REQUIRE_EQUAL(is_text(text), is_text_by_definition(text));
    for (unsigned b = 0; b < 256; ++b) {
      text = {static_cast<char>(a), static_cast<char>(b)};
      BOOST_REQUIRE_EQUAL(is_text(text), is_text_by_definition(text));
      for (unsigned c = 0; c < 256; c += a < 0xE0 ? 37 : 1) {
        text = {static_cast<char>(a), static_cast<char>(b), static_cast<char>(c)};
        if (is_text(text) != is_text_by_definition(text)) {
          BOOST_FAIL("bytes " << a << ' ' << b << ' ' << c);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(four_byte_characters_and_longer_texts_are_judged_as_by_decoding) {
  constexpr std::array<unsigned char, 12> kBytes = {0x01, 0x41, 0x7F, 0x80, 0x8F, 0x90,
                                                    0x9F, 0xA0, 0xBF, 0xC2, 0xE0, 0xFF};
  for (unsigned first = 0xF0; first < 0x100; ++first) {
    for (const unsigned char b : kBytes) {
      for (const unsigned char c : kBytes) {
        for (const unsigned char d : kBytes) {
          // behind plain words, so that both paths meet
          const std::string text = std::string("plain text ") +
                                   std::string({static_cast<char>(first), static_cast<char>(b),
                                                static_cast<char>(c), static_cast<char>(d)}) +
                                   "and more of it";
          BOOST_REQUIRE_EQUAL(is_text(text), is_text_by_definition(text));
        }
      }
    }
  }
  for (std::size_t at = 0; at < 40; ++at) {
    std::string text(40, 'a');
    text[at] = '\0';
    BOOST_TEST(!is_text(text), "NUL at " << at);
    text[at] = '\xFF';
    BOOST_TEST(!is_text(text), "0xFF at " << at);
  }
}

BOOST_AUTO_TEST_CASE(where_a_text_is_cut_does_not_matter) {
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x8E\x89 plain plain plain \xC3\xBC";
  BOOST_TEST(is_text(text));
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    Utf8Checker checker;
    checker.add(std::string_view(text).substr(0, cut));
    checker.add(std::string_view(text).substr(cut));
    BOOST_TEST(checker.is_whole());
  }
  BOOST_TEST(!is_text(std::string_view(text).substr(0, 2)));  // ends within a character
}

BOOST_AUTO_TEST_CASE(pieces_join_to_the_text_and_cut_no_character) {
  const TempFolder folder;
  std::mt19937_64 random(7);
  std::string text;
  while (text.size() < 300'000) {
    constexpr std::array<std::string_view, 6> kParts = {
        "word ", "\n", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x8E\x89", "a longer part"};
    text += kParts[random() % kParts.size()];
    if (text.size() > 150'000 && text.back() == '\n') {
      text.back() = ' ';  // no line ends in the second half
    }
  }
  write_bytes(folder / "a.txt", text);
  const TextScan scan = scan_text(folder / "a.txt");
  BOOST_TEST(scan.is_text);
  BOOST_TEST(scan.bytes == static_cast<Index>(text.size()));
  for (const std::size_t piece_bytes :
       {std::size_t{16}, std::size_t{17}, std::size_t{1000}, text.size(), std::size_t{1} << 20U}) {
    std::string joined;
    std::size_t longest = 0;
    bool all_whole = true;
    read_text(folder / "a.txt", scan, piece_bytes, [&](std::string_view piece) {
      joined += piece;
      longest = std::max(longest, piece.size());
      all_whole = all_whole && is_text(piece);
    });
    BOOST_TEST((joined == text));
    BOOST_TEST(longest <= piece_bytes);
    BOOST_TEST(all_whole, "pieces of " << piece_bytes);
  }
}

BOOST_AUTO_TEST_CASE(text_that_changes_between_the_two_looks_is_refused) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.txt";
  const std::string text(100'000, 'x');
  write_bytes(path, text);
  const TextScan scan = scan_text(path);
  const auto ignore = [](std::string_view) {};
  std::string other_start = text;
  other_start[0] = 'y';
  for (const std::string& changed : {text + "y", text.substr(1), other_start, std::string()}) {
    write_bytes(path, changed);
    BOOST_TEST(contains(message_of<FormatError>([&] { read_text(path, scan, 1000, ignore); }),
                        "changed while it was read"));
  }
}

BOOST_AUTO_TEST_CASE(what_is_no_prose_is_called_by_its_name) {
  struct Kind {
    std::string begin;
    std::string_view word;
  };
  const std::string record = R"({"text": "a \"quoted\" line", "id": [1, 2]})";
  for (const Kind& kind :
       {Kind{record + "\n" + record + "\n", "JSON Lines"}, Kind{record, "JSON Lines"},
        Kind{"\xef\xbb\xbf\n " + record + "\n" + record, "JSON Lines"},
        Kind{record + "\n" + record.substr(0, 9), "JSON Lines"},
        Kind{"[1, 2]\n[3, 4]\n", "JSON Lines"}, Kind{"{\n  \"a\": 1\n}\n", "JSON, not"},
        Kind{"[\n  {\"a\": 1},\n  {\"a\"", "JSON, not"}, Kind{"[1, 2, 3]", "JSON, not"},
        Kind{"{\"a\": [" + std::string(kTextKindBytes, '1'), "JSON, not"},
        Kind{"\x1f\x8b\x08 rest", "compressed"}, Kind{"PK\x03\x04 rest", "zip"},
        Kind{"\x28\xb5\x2f\xfd rest", "compressed"}, Kind{"%PDF-1.7\nrest", "PDF"},
        Kind{std::string("PAR1\x15\0\x15", 7), "Parquet"},
        Kind{"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 3\n", "git-lfs"}}) {
    BOOST_TEST(text_kind(kind.begin).find(kind.word) != std::string_view::npos,
               kind.begin.substr(0, 20) << ": " << text_kind(kind.begin));
  }
  for (const std::string_view text :
       {"", "\n", "Some prose.\n", "[1] A. Author, a reference.\n[2] B. Author.\n", "[1]\nprose\n",
        "{curly} prose", "{ \"unfinished", "int main() {}\n", "<html>text</html>", "\xff\xfe",
        "[the brackets] begin it", "{}\nprose that follows\n", "0123456 {\"a\": 1}"}) {
    BOOST_TEST(text_kind(text) == "", text);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
