#include "kernels/base/shell_word.h"

#include <boost/test/unit_test.hpp>

namespace tessera::test {
namespace {

BOOST_AUTO_TEST_SUITE(shell_word)

BOOST_AUTO_TEST_CASE(words_of_letters_digits_and_signs_without_meaning_stay) {
  BOOST_TEST(tessera::shell_word("runs/a-1_b.h5,c:2=d%+@e") == "runs/a-1_b.h5,c:2=d%+@e");
}

BOOST_AUTO_TEST_CASE(other_words_are_quoted) {
  BOOST_TEST(tessera::shell_word("") == "''");
  BOOST_TEST(tessera::shell_word(R"(it's a $b\n)") == R"('it'\''s a $b\n')");
  BOOST_TEST(tessera::shell_word("runs/\xc3\xa9") == "'runs/\xc3\xa9'");
}

BOOST_AUTO_TEST_CASE(words_with_control_characters_stay_in_one_line) {
  BOOST_TEST(tessera::shell_word("a\nit's\t\\1\x7f"
                                 "2") == R"($'a\nit\'s\011\\1\1772')");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
