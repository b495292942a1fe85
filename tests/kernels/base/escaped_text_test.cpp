#include "kernels/base/escaped_text.h"

#include <random>

#include <boost/test/unit_test.hpp>

namespace tessera::test {
namespace {

BOOST_AUTO_TEST_SUITE(escaped_text)

BOOST_AUTO_TEST_CASE(utf8_stays_as_it_is) {
  for (const std::string text : {"", "plain", "caf\xc3\xa9", "\xe2\x82\xac \xf0\x9f\x98\x80",
                                 R"(a\b \x \xg0)", "tab\tand\nnewline"}) {
    BOOST_TEST(tessera::escaped_text(text) == text);
    BOOST_TEST(shown_text(text) == text);
  }
}

BOOST_AUTO_TEST_CASE(what_is_not_utf8_is_shown_by_its_bytes) {
  BOOST_TEST(tessera::escaped_text("d\xff.h5") == "d\\xff.h5");
  BOOST_TEST(tessera::escaped_text("caf\xe9") == "caf\\xe9");
  BOOST_TEST(tessera::escaped_text("\xc0\xaf") == "\\xc0\\xaf");           // overlong
  BOOST_TEST(tessera::escaped_text("\xed\xa0\x80") == "\\xed\\xa0\\x80");  // a surrogate
  BOOST_TEST(tessera::escaped_text("\xf4\x90\x80\x80") ==
             "\\xf4\\x90\\x80\\x80");                             // above U+10FFFF
  BOOST_TEST(tessera::escaped_text("\xe2\x82") == "\\xe2\\x82");  // cut
}

BOOST_AUTO_TEST_CASE(a_backslash_that_was_there_can_be_distinguished) {
  BOOST_TEST(tessera::escaped_text("\\xff") == "\\x5cxff");
  BOOST_TEST(shown_text("\\xff") == "\\xff");
}

BOOST_AUTO_TEST_CASE(every_text_comes_back) {
  std::mt19937 chance(8);
  const std::string letters = "\\x5cfA0 \xff\xc3\xa9\xe2\x82\xac";
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (std::size_t length = chance() % 12; length > 0; --length) {
      text += chance() % 4 == 0 ? static_cast<char>(chance()) : letters[chance() % letters.size()];
    }
    const std::string escaped = tessera::escaped_text(text);
    BOOST_REQUIRE(unescaped_text(escaped) == text);
    BOOST_REQUIRE(shown_text(escaped) == escaped);  // it is UTF-8
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
