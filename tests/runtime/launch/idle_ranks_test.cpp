// Ranks without work, and what to set instead.
#include "runtime/launch/idle_ranks.h"

#include <regex>
#include <string>

#include <boost/test/unit_test.hpp>

namespace tessera {
namespace {

RunConfig options(Index global_batch, Index micro_batch) {
  RunConfig o;
  o.batch.global_batch = global_batch;
  o.batch.micro_batch = micro_batch;
  return o;
}

BOOST_AUTO_TEST_SUITE(idle_ranks)

BOOST_AUTO_TEST_CASE(more_ranks_than_micro_batches_are_reported_with_what_avoids_them) {
  BOOST_TEST(
      idle_ranks_text(options(16, 4), 8) ==
      "a step has 4 micro-batches (--global-batch 16 / --micro-batch 4), so 4 of 8 ranks have "
      "no work: 50% of the ranks' time is idle; --global-batch 32, or --micro-batch 2, or 4 "
      "ranks would give all of them work");
}

BOOST_AUTO_TEST_CASE(an_uneven_last_micro_step_is_reported) {
  BOOST_TEST(
      idle_ranks_text(options(20, 2), 4) ==
      "a step has 10 micro-batches (--global-batch 20 / --micro-batch 2), so 2 of 4 ranks have "
      "none in the last of its 3 micro-steps: 17% of the ranks' time is idle; --global-batch "
      "16 or 24, or --micro-batch 1, or 2 ranks would give all of them work");
}

BOOST_AUTO_TEST_CASE(nothing_is_reported_where_all_have_work) {
  BOOST_TEST(idle_ranks_text(options(16, 4), 4).empty());
  BOOST_TEST(idle_ranks_text(options(16, 4), 2).empty());
  BOOST_TEST(idle_ranks_text(options(1, 1), 1).empty());
}

// What is recommended is tried: no rank is idle with it.
BOOST_AUTO_TEST_CASE(every_remedy_is_one) {
  const auto numbers = [](const std::string& text, const char* pattern) {
    std::vector<Index> found;
    std::smatch match;
    if (std::regex_search(text, match, std::regex(pattern))) {
      for (std::size_t i = 1; i < match.size(); ++i) {
        if (match[i].matched) {
          found.push_back(std::stol(match[i]));
        }
      }
    }
    return found;
  };
  int tried = 0;
  for (const Index micro : {1, 2, 3, 4, 6}) {
    for (Index count = 1; count <= 12; ++count) {
      for (int ranks = 1; ranks <= 12; ++ranks) {
        const std::string text = idle_ranks_text(options(micro * count, micro), ranks);
        if (text.empty()) {
          BOOST_TEST(count % ranks == 0);
          continue;
        }
        const std::string advice = text.substr(text.find(" idle; "));
        const auto idle = [](Index batch, Index of_micro, Index of_ranks) {
          return batch % of_micro != 0 ||
                 rank_shares(batch, of_micro, static_cast<int>(of_ranks)).idle_ranks != 0;
        };
        for (const Index batch : numbers(advice, "--global-batch (\\d+)(?: or (\\d+))?")) {
          BOOST_TEST(!idle(batch, micro, ranks), text);
          ++tried;
        }
        for (const Index other : numbers(advice, "--micro-batch (\\d+)")) {
          BOOST_TEST(!idle(micro * count, other, ranks), text);
          ++tried;
        }
        for (const Index fewer : numbers(advice, "(\\d+) ranks?")) {
          BOOST_TEST(!idle(micro * count, micro, fewer), text);
          ++tried;
        }
      }
    }
  }
  BOOST_TEST(tried > 1000);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera
