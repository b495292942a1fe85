// Text that is broken into lines of a terminal's width.
#include "kernels/base/terminal.h"

#include <sstream>

#include <boost/test/unit_test.hpp>

namespace tessera {
namespace {

BOOST_AUTO_TEST_SUITE(terminal)

BOOST_AUTO_TEST_CASE(lines_that_fit_stay_as_they_are) {
  const std::string text = "usage: a  b\n\n    indented\nlast";
  BOOST_TEST(wrapped(text, 0, 4) == text);
  BOOST_TEST(wrapped(text, 80, 4) == text);
  BOOST_TEST(wrapped("one\n", 3, 0) == "one\n");
  BOOST_TEST(wrapped("", 3, 0).empty());
}

BOOST_AUTO_TEST_CASE(what_continues_a_line_stands_under_it) {
  BOOST_TEST(wrapped("model   tiny, 820 parameters", 20, 8) ==
             "model   tiny, 820\n        parameters");
  BOOST_TEST(wrapped("  one two three", 9, 0) == "  one two\n  three");
  BOOST_TEST(wrapped("aé bé cé", 5, 0) == "aé bé\ncé");
}

BOOST_AUTO_TEST_CASE(a_word_that_is_too_long_has_a_line_of_its_own) {
  BOOST_TEST(wrapped("a /a/very/long/name b", 6, 0) == "a\n/a/very/long/name\nb");
  BOOST_TEST(wrapped("so `run this now`, or ` that", 9, 0) == "so\n`run this now`,\nor ` that");
}

BOOST_AUTO_TEST_CASE(no_word_is_lost_at_any_width) {
  const std::string text = "  the lazy dog sleeps under\n\nthe quick fox and dreams of rivers\n";
  const auto words = [](const std::string& of) {
    std::istringstream in(of);
    std::string all;
    for (std::string word; in >> word;) {
      all += word + ' ';
    }
    return all;
  };
  for (std::size_t width = 14; width < 40; ++width) {
    std::istringstream lines(wrapped(text, width, 3));
    for (std::string line; std::getline(lines, line);) {
      BOOST_TEST(line.size() <= width);
    }
    BOOST_TEST(words(wrapped(text, width, 3)) == words(text));
  }
}

BOOST_AUTO_TEST_CASE(a_command_that_is_broken_is_still_one) {
  BOOST_TEST(wrapped_command("  train --seq 8 --out runs", 80, 4) == "  train --seq 8 --out runs");
  BOOST_TEST(wrapped_command("  train --seq 8 --out runs", 0, 4) == "  train --seq 8 --out runs");
  BOOST_TEST(wrapped_command("  train --seq 8 --out runs", 20, 2) ==
             "  train --seq 8 \\\n    --out runs");
  BOOST_TEST(wrapped_command("train --seq 8 --out runs", 10, 2) ==
             "train \\\n  --seq 8 \\\n  --out runs");
  // not within a word, whose part a backslash would be
  const std::string quoted = R"(--text 'a --b'\''c --d')";
  const std::string escaped = R"(--e $'f\' --g')";
  BOOST_TEST(wrapped_command("train " + quoted + " " + escaped + " --h", 12, 2) ==
             "train \\\n  " + quoted + " \\\n  " + escaped + " \\\n  --h");
}

BOOST_AUTO_TEST_CASE(a_command_behind_a_message_has_lines_of_its_own) {
  const std::string message = "to continue: mpirun -np 2 train --out runs\n";
  BOOST_TEST(message_lines(message, 0, 2) == message);
  BOOST_TEST(message_lines(message, 80, 2) == message);
  BOOST_TEST(message_lines(message, 24, 2) ==
             "to continue:\n  mpirun -np 2 train \\\n    --out runs\n");
}

BOOST_AUTO_TEST_CASE(lines_that_are_commands_are_broken_as_such) {
  BOOST_TEST(message_lines("it fits on one card\n  train --seq 8 --out runs\nend", 17, 2) ==
             "it fits on one\n  card\n  train --seq 8 \\\n    --out runs\nend");
}

BOOST_AUTO_TEST_CASE(lines_of_a_paragraph_become_one) {
  BOOST_TEST(paragraphs("use A\n  what A\n  does\nuse B\n\nlast\nwords\n") ==
             "use A\n  what A does\nuse B\n\nlast words\n");
  BOOST_TEST(paragraphs("\none\n\n") == "\none\n\n");
  BOOST_TEST(paragraphs("").empty());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera
