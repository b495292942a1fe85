// When a run counts as diverged though its losses are finite, and how often that is reported.
#define BOOST_TEST_MODULE loss_watch
#include "runtime/monitor/loss_watch.h"

#include <cmath>
#include <limits>

#include <boost/test/unit_test.hpp>

namespace tessera::test {
namespace {

constexpr Index kVocab = 256;
const double kGuess = std::log(256.0);
constexpr int kSteps = static_cast<int>(LossWatch::kSteps);

// How many of `steps` equal losses are reported.
int reported(LossWatch& watch, int steps, double loss) {
  int count = 0;
  for (int i = 0; i < steps; ++i) {
    count += watch.add(loss) ? 1 : 0;
  }
  return count;
}

BOOST_AUTO_TEST_CASE(a_run_that_learns_or_guesses_is_not_diverged) {
  LossWatch watch(kVocab);
  BOOST_TEST(reported(watch, 50, kGuess * 1.09) == 0);
  BOOST_TEST(reported(watch, 50, 2.0) == 0);
  BOOST_TEST(!watch.is_diverged());
}

BOOST_AUTO_TEST_CASE(ten_losses_above_guessing_are_reported_once) {
  LossWatch watch(kVocab);
  BOOST_TEST(reported(watch, 1, kGuess) == 0);
  BOOST_TEST(reported(watch, kSteps - 2, 3 * kGuess) == 0);  // not ten losses yet
  BOOST_TEST(watch.add(3 * kGuess));
  BOOST_TEST(watch.is_diverged());
  BOOST_TEST(reported(watch, 100, 3 * kGuess) == 0);
  BOOST_TEST(watch.mean() == 3 * kGuess, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(watch.text("the run has diverged")
                 .find("the run has diverged: the loss of the last "
                       "10 steps is 16.6355 on average, where "
                       "guessing costs 5.5452; ") == 0U);
  BOOST_TEST(reported(watch, kSteps, 2.0) == 0);
  BOOST_TEST(!watch.is_diverged());
}

BOOST_AUTO_TEST_CASE(a_spike_is_not_a_divergence) {
  LossWatch watch(kVocab);
  BOOST_TEST(reported(watch, 20, 4.0) == 0);
  BOOST_TEST(!watch.add(20.0));
  BOOST_TEST(reported(watch, 20, 4.0) == 0);
}

// Label smoothing, z-loss or a base of another text may begin above.
BOOST_AUTO_TEST_CASE(the_first_loss_counts_where_it_is_above_guessing) {
  LossWatch watch(kVocab);
  BOOST_TEST(reported(watch, 50, 2 * kGuess) == 0);
  BOOST_TEST(watch.reference() == 2 * kGuess);
  BOOST_TEST(reported(watch, 50, 3 * kGuess) == 1);
  BOOST_TEST(watch.text("x").find(" and the first step cost 11.0904; ") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(skipped_steps_are_passed_over) {
  LossWatch watch(kVocab);
  BOOST_TEST(!watch.add(std::numeric_limits<double>::infinity()));
  BOOST_TEST(watch.reference() == kGuess);
  BOOST_TEST(reported(watch, kSteps - 1, 3 * kGuess) == 0);
  BOOST_TEST(!watch.add(std::numeric_limits<double>::quiet_NaN()));
  BOOST_TEST(!watch.is_diverged());
}

}  // namespace
}  // namespace tessera::test
