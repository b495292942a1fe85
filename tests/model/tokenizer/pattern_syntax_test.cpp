// Oniguruma's patterns in PCRE2: what is translated, and what is refused by name.
#define BOOST_TEST_MODULE pattern_syntax
#include "model/tokenizer/pattern_syntax.h"

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"
#include "model/tokenizer/known_patterns.h"
#include "model/tokenizer/split_pattern.h"

namespace tessera {
namespace {

using Words = std::vector<std::string>;

Words matches(std::string_view pattern, std::string_view text) {
  const SplitPattern split(pcre2_from_oniguruma(pattern));
  PatternScratch scratch;
  Words words;
  std::size_t from = 0;
  while (const auto match = split.find(text, from, scratch)) {
    words.emplace_back(text.substr(match->begin, match->end - match->begin));
    from = match->end;
  }
  return words;
}

std::string refusal(std::string_view pattern) {
  try {
    static_cast<void>(pcre2_from_oniguruma(pattern));
  } catch (const FormatError& error) {
    return error.message();
  }
  return "accepted";
}

}  // namespace

BOOST_AUTO_TEST_SUITE(pattern_syntax)

BOOST_AUTO_TEST_CASE(white_space_is_unicodes_property) {
  BOOST_TEST(matches(R"(\s+)", "a\u180Eb\u00A0\u3000c") == (Words{"\u00A0\u3000"}),
             boost::test_tools::per_element());
  BOOST_TEST(matches(R"(\S+)", "a\u180Eb c") == (Words{"a\u180Eb", "c"}),
             boost::test_tools::per_element());
  BOOST_TEST(matches(R"([^\s\p{L}]+)", "a \u180E") == (Words{"\u180E"}),
             boost::test_tools::per_element());
  BOOST_TEST(matches(R"([\s\S]+)", "a \n") == (Words{"a \n"}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_plus_behind_an_interval_repeats_it) {
  BOOST_TEST(matches(R"(\p{N}{1,3}+)", "1234567") == (Words{"1234567"}),
             boost::test_tools::per_element());
  BOOST_TEST(matches(R"((?:ab){2}+)", "ababab") == (Words{"abab"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_plus_behind_a_sign_is_possessive) {
  BOOST_TEST(matches("a++a|b", "aaab") == (Words{"b"}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_dollar_is_the_end_of_a_line) {
  BOOST_TEST(matches(R"(\s+$)", "a \n b ") == (Words{" ", " "}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(caseless_contractions_match_what_folds_to_their_letters) {
  BOOST_TEST(
      matches("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'S'Ll'\u017F'x") == (Words{"'S", "'Ll", "'\u017F"}),
      boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(signs_and_numbers_are_characters) {
  BOOST_TEST(matches(R"([\-\]\\#]+)", "a-]\\#b") == (Words{"-]\\#"}),
             boost::test_tools::per_element());
  BOOST_TEST(
      matches(R"([\u4e00-\u9fa5\x{1F600}]+)", "x中文\U0001F600y") == (Words{"中文\U0001F600"}),
      boost::test_tools::per_element());
  BOOST_TEST(matches(R"(\v\x41#)", "\u2028A# \vA#") == (Words{"\vA#"}),
             boost::test_tools::per_element());
  BOOST_TEST(matches(pcre2_of_literal(".*"), "a.*b") == (Words{".*"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_means_something_else_is_refused_by_name_and_place) {
  for (const auto& [pattern, named] :
       std::vector<std::pair<std::string, std::string>>{{R"(a\h)", R"(\h at byte 1)"},
                                                        {R"([a&&b])", "&& at byte 2"},
                                                        {R"([a[b]])", "[ at byte 2"},
                                                        {R"([[:alpha:]])", "[ at byte 1"},
                                                        {R"((?i:'ss))", "ss at byte 5"},
                                                        {R"((?i:é))", "within (?i:"},
                                                        {R"((?i)a)", "(?i at byte 0"},
                                                        {R"((?<name>a))", "(?< at byte 0"},
                                                        {R"(\p{Han})", R"(\p{Han} at byte 0)"},
                                                        {R"(\p{^L})", R"(\p{^L} at byte 0)"},
                                                        {R"(\p{Cn})", R"(\p{Cn} at byte 0)"},
                                                        {R"(\pL)", R"(\p{} at byte 0)"},
                                                        {R"(\W)", R"(\W at byte 0)"},
                                                        {R"(\bword)", R"(\b at byte 0)"},
                                                        {R"(\X)", R"(\X at byte 0)"},
                                                        {R"(\1)", R"(\1 at byte 0)"},
                                                        {R"(^a)", "^ at byte 0"},
                                                        {R"(a{2}?)", "{}? at byte 4"},
                                                        {R"(a{,3})", "{ at byte 1"},
                                                        {R"(a**)", "a quantifier at byte 2"},
                                                        {R"((?=a)*)", "a quantifier at byte 5"},
                                                        {R"(a{2}++)", "a quantifier at byte 5"},
                                                        {R"(a|*)", "* at byte 2"},
                                                        {R"(a])", "] at byte 1"},
                                                        {R"([])", "] at byte 1"},
                                                        {R"([z-a])", "a range at byte 4"},
                                                        {R"([a-\s])", "a range at byte 5"},
                                                        {R"([\s-a])", "- at byte 3"},
                                                        {R"([a-b-c])", "- at byte 4"},
                                                        {R"(\x{110000})", R"(\x at byte 0)"},
                                                        {R"(\xE9)", R"(\x at byte 0)"},
                                                        {R"((a)", "the end at byte 2"},
                                                        {R"([a)", "the end at byte 2"},
                                                        {R"(a))", ") at byte 1"},
                                                        {"a\xFF", "byte 1 is not UTF-8"},
                                                        {"\\", "\\ at byte 1"}}) {
    BOOST_TEST(refusal(pattern).find(named) != std::string::npos,
               pattern << ": " << refusal(pattern) << ", without: " << named);
  }
  BOOST_TEST(refusal(std::string(60, '(') + "a" + std::string(60, ')')).find("too deeply") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_pattern_that_matches_no_length_is_refused) {
  BOOST_CHECK_THROW(SplitPattern(pcre2_from_oniguruma("a*")), FormatError);
}

BOOST_AUTO_TEST_CASE(a_limit_that_is_reached_is_an_error_and_not_the_end) {
  const SplitPattern split(pcre2_from_oniguruma("(?:a|aa)+[bc]"));
  PatternScratch scratch;
  BOOST_CHECK_THROW(static_cast<void>(split.find(std::string(100, 'a'), 0, scratch)), FormatError);
}

BOOST_AUTO_TEST_CASE(known_patterns_are_understood) {
  for (const std::string_view pattern :
       {kGpt2Pattern, kLlama3Pattern, kQwen2Pattern, kLlama4Pattern, kTekkenPattern}) {
    BOOST_TEST(matches(pattern, "It's 12 x\n\n  y").size() > 4);
    BOOST_TEST(splits_before_spaces(std::vector{pattern}));
  }
  BOOST_TEST(!splits_before_spaces(std::vector<std::string_view>{R"(\s+)"}));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera
