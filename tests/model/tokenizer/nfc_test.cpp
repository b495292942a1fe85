// Normalization form C, and characters of UTF-8.
#define BOOST_TEST_MODULE nfc
#include "model/tokenizer/nfc.h"

#include <chrono>

#include <boost/test/unit_test.hpp>

#include "model/tokenizer/utf8.h"

namespace tessera {

BOOST_AUTO_TEST_SUITE(nfc)

BOOST_AUTO_TEST_CASE(text_is_composed_where_it_must_be) {
  const Nfc nfc(NfcTables::newest);
  std::string room;
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"plain", "plain"},
           {"e\u0301", "\u00E9"},
           {"xe\u0301ye\u0301", "x\u00E9y\u00E9"},
           {"\u0301e", "\u0301e"},
           {"a\u0315\u0300\u05AE", "\u00E0\u05AE\u0315"},  // marks change their order
           {"\u212B", "\u00C5"},                           // changes alone
           {"\u0958", "\u0915\u093C"},                     // is excluded from composition
           {"\u1100\u1161\u11A8", "\uAC01"},               // Hangul
           {"\uAC00\u11A8", "\uAC01"},
           {"\u0344", "\u0308\u0301"},
           {"q\u0307\u0323", "q\u0323\u0307"},
           {"\u09C7\u09BE", "\u09CB"},  // two starters
           {"\U00011099\U000110BA", "\U0001109A"},
           {"\u1E9B\u0323", "\u1E9B\u0323"}}) {
    BOOST_TEST(nfc.normalized(from, room) == to, from);
    const std::string around = "a " + from + " b";
    BOOST_TEST(nfc.normalized(around, room) == "a " + to + " b", from);
  }
}

BOOST_AUTO_TEST_CASE(marks_that_unicode_9_does_not_have_keep_their_place_where_it_counts) {
  const Nfc newest(NfcTables::newest);
  const Nfc unicode9(NfcTables::unicode9);
  std::string room;
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"a\u07FD\u0334", "a\u0334\u07FD"},
           {"a\u07FD\u0301", "\u00E1\u07FD"},
           {"a\u0301\u0323\u07FD\u0334", "\u1EA1\u0334\u07FD\u0301"},
           {"\U00011935\U00011930", "\U00011938"}}) {
    BOOST_TEST(newest.normalized(from, room) == to, from);
    const std::string behind = from.starts_with("a\u0301") ? "\u1EA1\u0301\u07FD\u0334" : from;
    BOOST_TEST(unicode9.normalized(from, room) == behind, from);
  }
  BOOST_TEST(unicode9.normalized("e\u0301\u07FDe\u0301", room) == "\u00E9\u07FD\u00E9");
}

BOOST_AUTO_TEST_CASE(text_that_does_not_change_is_not_copied) {
  const Nfc nfc(NfcTables::newest);
  std::string room;
  const std::string text = "caf\u00E9 \u4E2D\u6587 \U0001F600";
  BOOST_TEST(nfc.normalized(text, room).data() == text.data());
}

BOOST_AUTO_TEST_CASE(a_megabyte_of_marks_is_put_in_order_in_time) {
  const Nfc nfc(NfcTables::newest);
  std::string text = "a";
  std::string expected = "a";
  for (int i = 0; i < 200'000; ++i) {
    text += "\u0315\u05AE";
  }
  for (const char* mark : {"\u05AE", "\u0315"}) {
    for (int i = 0; i < 200'000; ++i) {
      expected += mark;
    }
  }
  std::string room;
  BOOST_TEST((nfc.normalized(text, room) == expected));
}

BOOST_AUTO_TEST_CASE(only_characters_are_utf8) {
  std::string all;
  for (std::uint32_t code = 0; code <= kLastCodePoint; ++code) {
    if (code >= 0xD800 && code < 0xE000) {
      continue;
    }
    std::string one;
    append_utf8(code, one);
    const Utf8Character first = first_character(one + "x");
    const Utf8Character last = last_character("\u00E9" + one);
    if (first.code != code || first.bytes != one.size() || last.code != code ||
        last.bytes != one.size()) {
      BOOST_FAIL("U+" << std::hex << code);
    }
    all += one;
  }
  BOOST_TEST(utf8_bytes(all) == all.size());
  for (const std::string bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xC3", "\xE4\xB8", "\xF0\x9F\x98"}) {
    BOOST_TEST(utf8_bytes("12345678" + bad) == 8U);
    BOOST_TEST(first_character(bad).bytes == 0U);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera
