// The progress line at any width.
#include "runtime/monitor/progress_line.h"

#include <boost/test/unit_test.hpp>

#include "kernels/base/terminal.h"

namespace tessera {
namespace {

StepReport a_report() {
  StepReport report;
  report.step = 7;
  report.loss = 3.25;
  report.grad_norm = 0.5;
  report.lr = 1e-3;
  report.targets = 512;
  return report;
}

constexpr ProgressFacts kFacts = {.steps = 100,
                                  .tokens_per_second = 20480,
                                  .seconds_left = 190,
                                  .clip = 0,
                                  .has_loss_terms = false,
                                  .skipped_in_all = 0,
                                  .warning = {}};

BOOST_AUTO_TEST_SUITE(progress_line)

BOOST_AUTO_TEST_CASE(without_a_width_everything_is_there) {
  BOOST_TEST(progress_text(a_report(), kFacts, 0, Colours::off) ==
             "step 7/100  loss 3.2500  norm 0.500  lr 1.00e-03  20480 tok/s  3m10s left");
}

BOOST_AUTO_TEST_CASE(evaluation_and_memory_are_shown_where_they_are_known) {
  ProgressFacts facts = kFacts;
  facts.eval_loss = 3.5;
  facts.memory_bytes = 71'200'000'000;
  BOOST_TEST(progress_text(a_report(), facts, 0, Colours::off) ==
             "step 7/100  loss 3.2500  eval 3.5000  norm 0.500  lr 1.00e-03  20480 tok/s  memory "
             "71.20 GB  3m10s left");
  BOOST_TEST(progress_text(a_report(), facts, 60, Colours::off) ==
             "step 7/100  loss 3.2500  eval 3.5000  3m10s left");
}

BOOST_AUTO_TEST_CASE(a_norm_that_is_clipped_is_reported_as_the_one_before) {
  ProgressFacts facts = kFacts;
  facts.clip = 0.1;
  BOOST_TEST(progress_text(a_report(), facts, 0, Colours::off) ==
             "step 7/100  loss 3.2500  norm 0.500 before clipping  lr 1.00e-03  20480 tok/s  3m10s "
             "left");
  facts.clip = 1;
  BOOST_TEST(progress_text(a_report(), facts, 0, Colours::off) ==
             progress_text(a_report(), kFacts, 0, Colours::off));
}

BOOST_AUTO_TEST_CASE(a_loss_with_further_terms_is_called_the_objective) {
  ProgressFacts facts = kFacts;
  facts.has_loss_terms = true;
  BOOST_TEST(progress_text(a_report(), facts, 30, Colours::off) == "step 7/100  objective 3.2500");
}

BOOST_AUTO_TEST_CASE(a_step_without_targets_has_no_loss) {
  StepReport report = a_report();
  report.loss = 0;
  report.targets = 0;
  BOOST_TEST(progress_text(report, kFacts, 24, Colours::off) == "step 7/100  no targets");
}

BOOST_AUTO_TEST_CASE(every_width_is_kept_and_the_step_goes_last) {
  ProgressFacts facts = kFacts;
  facts.skipped_in_all = 3;
  facts.warning = "the save of step 5 failed";
  StepReport report = a_report();
  report.skipped = true;
  for (std::size_t width = 1; width < 200; ++width) {
    const std::string line = progress_text(report, facts, width, Colours::off);
    BOOST_TEST(line.size() <= width);
    BOOST_TEST(line.starts_with(std::string("step 7/100").substr(0, width)));
  }
  BOOST_TEST(progress_text(a_report(), kFacts, 60, Colours::off) ==
             "step 7/100  loss 3.2500  norm 0.500  20480 tok/s  3m10s left");
  BOOST_TEST(progress_text(a_report(), kFacts, 25, Colours::off) == "step 7/100  loss 3.2500");
  BOOST_TEST(progress_text(report, facts, 60, Colours::off) ==
             "step 7/100  SKIPPED: not finite  ! the save of step 5 failed");
}

BOOST_AUTO_TEST_CASE(colours_count_no_columns_and_are_closed) {
  StepReport report = a_report();
  report.skipped = true;
  const std::string line = progress_text(report, kFacts, 31, Colours::on);
  BOOST_TEST(line == "step 7/100  \033[31mSKIPPED: not finite\033[0m");
}

BOOST_AUTO_TEST_CASE(text_is_cut_between_characters_and_holds_no_control_codes) {
  BOOST_TEST(fitted("a\xc3\xa4\xe2\x82\xac!", 3) == "a\xc3\xa4\xe2\x82\xac");
  BOOST_TEST(fitted("a\033[2J\nb", 99) == "a?[2J?b");
  BOOST_TEST(fitted("abc", 0).empty());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera
