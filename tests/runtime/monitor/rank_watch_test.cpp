// Which rank holds the others up: named once, after twenty steps, beside ranks with as much to do.
#define BOOST_TEST_MODULE rank_watch
#include "runtime/monitor/rank_watch.h"

#include <optional>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"

namespace tessera::test {
namespace {

constexpr int kSlow = static_cast<int>(RankWatch::kSlowSteps);

std::vector<RankTimes> step_of(const std::vector<double>& computing) {
  std::vector<RankTimes> times;
  times.reserve(computing.size());
  for (const double seconds : computing) {
    times.push_back({.computing = seconds, .exposed_update = 0.1, .exposed_exchange = 2 - seconds});
  }
  return times;
}

// Whom the last of `steps` equal steps names, if it is one rank, and the ones before name none.
std::optional<SlowRank> after(RankWatch& watch, int steps, const std::vector<double>& computing) {
  for (int i = 1; i < steps; ++i) {
    BOOST_TEST(watch.add(step_of(computing)).empty(), i);
  }
  const std::vector<SlowRank> named = watch.add(step_of(computing));
  BOOST_TEST(named.size() <= 1U);
  return named.empty() ? std::nullopt : std::optional(named.front());
}

BOOST_AUTO_TEST_CASE(a_rank_is_named_after_twenty_slow_steps_and_once) {
  RankWatch watch({2, 2, 2, 2});
  BOOST_TEST(!after(watch, 3, {1, 1, 1, 1}));
  // the median of twenty steps is slow from the eleventh slow one on
  const auto slow = after(watch, kSlow - 3, {1, 1.01, 1, 1.08});
  BOOST_REQUIRE(slow);
  BOOST_TEST(slow->rank == 3);
  BOOST_TEST(slow->excess == 0.08, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(slow->seconds == 1.08);
  BOOST_TEST(slow->median_seconds == 1);
  BOOST_TEST(!after(watch, 100, {1, 1.01, 1, 1.08}));
  // it recovers, and is slow again
  BOOST_TEST(!after(watch, 2 * kSlow, {1, 1, 1, 1.04}));  // not below the lower limit: not again
  BOOST_TEST(!after(watch, kSlow / 2 + 1, {1, 1, 1, 1.5}));
  BOOST_TEST(!after(watch, 2 * kSlow, {1, 1, 1, 1.02}));
  BOOST_TEST(after(watch, kSlow / 2 + 1, {1, 1, 1, 1.5}).has_value());
}

BOOST_AUTO_TEST_CASE(the_numbers_of_a_slow_rank_agree_where_steps_differ) {
  RankWatch watch({1, 1});
  std::optional<SlowRank> slow;
  for (int i = 0; i < 3 * kSlow && !slow; ++i) {
    const double length = 1 + 0.1 * (i % 7);
    const double excess =
        i == kSlow - 1 ? -0.5 : 0.1 + 0.01 * (i % 5);  // quick in the step it is named in
    const std::vector<SlowRank> named = watch.add(step_of({length, length * (1 + excess)}));
    slow = named.empty() ? slow : std::optional(named.front());
  }
  BOOST_REQUIRE(slow);
  BOOST_TEST(slow->rank == 1);
  BOOST_TEST(slow->excess > 0.1);
  BOOST_TEST(slow->seconds / slow->median_seconds - 1 == slow->excess,
             boost::test_tools::tolerance(1e-12));
}

BOOST_AUTO_TEST_CASE(a_few_slow_steps_and_what_all_ranks_do_name_none) {
  RankWatch watch({1, 1});
  for (int i = 0; i < 200; ++i) {
    BOOST_TEST(watch.add(step_of({i % 3 == 0 ? 9.0 : 1.0, 1})).empty());
  }
  BOOST_TEST(!after(watch, 100, {3, 3}));
  BOOST_TEST(!after(watch, 100, {1.0499, 1}));
  BOOST_TEST(!after(watch, 100, {0.0119, 0.0101}));  // a wait of less than 2 ms, though 18% longer
}

BOOST_AUTO_TEST_CASE(ranks_are_held_against_those_with_as_many_micro_batches) {
  RankWatch watch({2, 2, 1, 1, 0});
  BOOST_TEST(!after(watch, 100, {2, 2, 1, 1, 0}));
  const auto slow = after(watch, kSlow / 2 + 1, {2, 2, 1.2, 1, 0});
  BOOST_REQUIRE(slow);
  BOOST_TEST(slow->rank == 2);
  BOOST_TEST(slow->median_seconds == 1);
  RankWatch alone({2, 1});
  BOOST_TEST(!after(alone, 100, {2, 1}));
}

BOOST_AUTO_TEST_CASE(several_are_named_in_the_same_step) {
  RankWatch watch({1, 1, 1, 1, 1});
  BOOST_TEST(!after(watch, kSlow - 1, {1, 1.1, 1, 1.3, 1}));
  const std::vector<SlowRank> named = watch.add(step_of({1, 1.1, 1, 1.3, 1}));
  BOOST_REQUIRE(named.size() == 2U);
  BOOST_TEST(named[0].rank == 1);
  BOOST_TEST(named[1].rank == 3);
}

BOOST_AUTO_TEST_CASE(means_are_of_the_steps_since_the_last) {
  RankWatch watch({1, 1, 1});
  (void)watch.add(step_of({1, 1.5, 1.25}));
  (void)watch.add(step_of({1, 1.5, 1.75}));
  BOOST_TEST(watch.steps() == 2U);
  const auto means = watch.take_means();
  BOOST_TEST(means["steps"] == 2);
  const auto& computing = means["computing_seconds"];
  BOOST_TEST(computing["least"] == 1.0);
  BOOST_TEST(computing["median"] == 1.5);
  BOOST_TEST(computing["most"] == 1.5);
  BOOST_TEST(computing["most_rank"] == 1);
  BOOST_TEST((computing["by_rank"] == std::vector<double>{1, 1.5, 1.5}));
  BOOST_TEST((means["exposed_exchange_seconds"]["by_rank"] == std::vector<double>{1, 0.5, 0.5}));
  BOOST_TEST(watch.steps() == 0U);
  BOOST_CHECK_THROW((void)watch.take_means(), ContractError);
  (void)watch.add(step_of({3, 1, 1}));
  const auto next = watch.take_means();
  BOOST_TEST(next["computing_seconds"]["least"] == 1.0);
  BOOST_TEST(next["computing_seconds"]["most_rank"] == 0);
}

BOOST_AUTO_TEST_CASE(many_ranks_are_not_listed) {
  const std::size_t count = RankWatch::kListedRanks + 1;
  RankWatch watch(std::vector<Index>(count, 1));
  (void)watch.add(step_of(std::vector<double>(count, 1)));
  const auto means = watch.take_means();
  BOOST_TEST(!means["computing_seconds"].contains("by_rank"));
  BOOST_TEST(means["computing_seconds"]["median"] == 1.0);
}

BOOST_AUTO_TEST_CASE(the_text_names_rank_host_and_times) {
  BOOST_TEST(to_text({3, 0.083, 1.08, 1.0}, "node07")
                 .starts_with("rank 3 on node07 has computed 8% longer than the median of the "
                              "ranks with as many micro-batches (1.08 s against 1 s in a typical "
                              "one of its last 20 steps): "));
}

}  // namespace
}  // namespace tessera::test
