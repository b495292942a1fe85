// The estimate of `train --plan` beside every step that was measured on one and two GPUs.
#define BOOST_TEST_MODULE step_estimate
#include "runtime/plan/step_estimate.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

#include "runtime/plan/memory_plan.h"
#include "runtime/run/options.h"

namespace tessera::test {
namespace {

// Largest deviation of a row, and of all rows together (root mean square).
constexpr double kRowBound = 0.05;
constexpr double kAllBound = 0.03;

// A step that was measured.
struct Measured {
  std::string file;  // of jobs/bench/results
  double tokens_per_second;
  std::string model;
  int ranks;
  bool updates;  // not a variant with update=none
  std::string options;
};

// The rows of tests/golden/measured_steps.tsv.
std::vector<Measured> measured_steps() {
  const char* golden = std::getenv("TESSERA_GOLDEN");
  BOOST_REQUIRE(golden != nullptr);
  std::ifstream in(std::filesystem::path(golden) / "measured_steps.tsv");
  std::vector<Measured> rows;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with('#') || line.starts_with("measured in\t")) {
      continue;
    }
    std::vector<std::string> cells;
    std::istringstream text(line);
    for (std::string cell; std::getline(text, cell, '\t');) {
      cells.push_back(cell);
    }
    BOOST_REQUIRE_MESSAGE(cells.size() == 6 && (cells[4] == "yes" || cells[4] == "no"), line);
    rows.push_back({cells[0], std::stod(cells[1]), cells[2], std::stoi(cells[3]), cells[4] == "yes",
                    cells[5]});
  }
  return rows;
}

RunConfig options_of(const std::string& text) {
  std::vector<std::string> words = {"train", "--plan", "--device", "cuda"};
  std::istringstream in(text);
  std::copy(std::istream_iterator<std::string>(in), {}, std::back_inserter(words));
  std::vector<const char*> argv;
  std::transform(words.begin(), words.end(), std::back_inserter(argv),
                 [](const std::string& word) { return word.c_str(); });
  return parse_options(static_cast<int>(argv.size()), argv.data()).config;
}

StepEstimate estimate(const std::string& model, const std::string& options, int ranks,
                      int of_node) {
  return MemoryPlan(
             options_of(options), preset(model), ranks,
             {.device_bytes = 0, .host_bytes = 0, .ranks_per_node = of_node, .node_ranks = of_node})
      .estimate();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(step_estimate)

// Prints the table of jobs/bench/results/estimate.md.
BOOST_AUTO_TEST_CASE(every_measured_step_is_estimated_within_its_bound) {
  double squares = 0;
  std::string table =
      "| measured in | model | ranks | options | measured s | estimate s | ratio |\n"
      "| --- | --- | --- | --- | --- | --- | --- |\n";
  const std::vector<Measured> rows = measured_steps();
  BOOST_REQUIRE_GE(rows.size(), 60U);
  for (const Measured& row : rows) {
    std::string text = row.options;
    // the defaults when these were measured
    for (const auto* option : {"--page-bytes 8MiB", "--master-weights f32"}) {
      const std::string text_of = option;
      if (text.find(text_of.substr(0, text_of.find(' '))) == std::string::npos) {
        text += " " + text_of;
      }
    }
    const RunConfig options = options_of(text);
    const StepEstimate e = estimate(row.model, text, row.ranks, row.ranks);
    const double measured =
        static_cast<double>(options.batch.global_batch * options.batch.seq) / row.tokens_per_second;
    const double estimated = e.step_seconds - (row.updates ? 0 : e.exposed_update_seconds);
    const double ratio = estimated / measured;
    table += fmt::format("| {} | {} | {} | `{}`{} | {:.4f} | {:.4f} | {:.3f} |\n", row.file,
                         row.model, row.ranks, row.options, row.updates ? "" : ", without update",
                         measured, estimated, ratio);
    squares += (ratio - 1) * (ratio - 1);
    BOOST_CHECK_MESSAGE(!e.is_bound_by_launches, row.model << " " << row.options);
    BOOST_CHECK_MESSAGE(std::abs(ratio - 1) <= kRowBound, row.model << " " << row.options << ": "
                                                                    << estimated << " s for "
                                                                    << measured << " s, " << ratio);
  }
  const double deviation = std::sqrt(squares / static_cast<double>(rows.size()));
  fmt::print("{}root mean square deviation {:.3f}\n", table, deviation);
  BOOST_CHECK_LE(deviation, kAllBound);
}

BOOST_AUTO_TEST_CASE(what_travels_between_nodes_is_counted) {
  constexpr const char* kCommon = "--seq 4096 --micro-batch 1 --global-batch 16 ";
  const auto P = static_cast<double>(parameter_count(preset("qwen3-8b")));
  const StepEstimate flat = estimate("qwen3-8b", kCommon, 16, 8);
  const StepEstimate levels =
      estimate("qwen3-8b", std::string(kCommon) + "--reduce-group 8", 16, 8);
  const StepEstimate native = estimate("qwen3-8b", std::string(kCommon) + "--reduce native", 16, 8);
  BOOST_CHECK(flat.route == ExchangeRoute::flat);
  BOOST_CHECK(levels.route == ExchangeRoute::hierarchical);
  BOOST_CHECK(native.route == ExchangeRoute::native);
  const double gather = 2 * P / 8 / 2;  // bf16, in one half of it over 8 cards
  BOOST_CHECK_CLOSE(flat.network_bytes, 2 * P / 2 + gather, 1e-6);
  BOOST_CHECK_CLOSE(levels.network_bytes, 4 * P / 8 / 2 + gather, 1e-6);
  BOOST_CHECK_CLOSE(native.network_bytes, 2 * P / 8 / 2 + gather, 1e-6);
  // behind a network that the backward pass does not hide
  const std::string slow = std::string(kCommon) + "--network-bandwidth 10GB ";
  BOOST_CHECK_LT(estimate("qwen3-8b", slow + "--reduce-group 8", 16, 8).step_seconds,
                 0.8 * estimate("qwen3-8b", slow, 16, 8).step_seconds);
  BOOST_CHECK_EQUAL(estimate("qwen3-8b", kCommon, 8, 8).network_bytes, 0);
}

BOOST_AUTO_TEST_CASE(a_measured_network_takes_the_place_of_the_assumed_one) {
  const auto plan_of = [](const std::string& more) {
    return MemoryPlan(options_of("--seq 4096 --micro-batch 1 --global-batch 16 " + more),
                      preset("qwen3-8b"), 16,
                      {.device_bytes = 0, .host_bytes = 0, .ranks_per_node = 8, .node_ranks = 8});
  };
  // the same rates, given and measured
  MemoryPlan plan = plan_of("--network-bandwidth 10GB");
  const StepEstimate assumed = plan.estimate();
  BOOST_CHECK(plan.network_text().empty());
  BOOST_CHECK(plan.json().find("\"network_is_measured\": false") != std::string::npos);
  plan.set_network({.exchange = 10e9, .gather = 10e9});
  BOOST_CHECK_EQUAL(plan.estimate().step_seconds, assumed.step_seconds);
  BOOST_CHECK(plan.json().find("\"network_is_measured\": true") != std::string::npos);
  // nothing beside the bytes but what a message takes
  BOOST_CHECK_CLOSE(assumed.network_seconds, assumed.network_bytes / 10e9, 5);
  // measured rates count, whatever is assumed; exchange and gather each have their own
  plan = plan_of("--network-bandwidth 45GB");
  plan.set_network({.exchange = 10e9, .gather = 10e9});
  BOOST_CHECK_EQUAL(plan.estimate().step_seconds, assumed.step_seconds);
  plan.set_network({.exchange = 10e9, .gather = 1e9});
  const StepEstimate slow_gather = plan.estimate();
  const double gather =
      2 * static_cast<double>(parameter_count(preset("qwen3-8b"))) / 8 / 2;  // bytes
  BOOST_CHECK_CLOSE(slow_gather.network_seconds - assumed.network_seconds,
                    gather / 1e9 - gather / 10e9, 1e-3);
  BOOST_CHECK(
      slow_gather.text().find("10.00 GB/s of an all-to-all and 1.00 GB/s of an all-gather") !=
      std::string::npos);
  BOOST_CHECK(slow_gather.text().find("No network was measured") == std::string::npos);
  BOOST_CHECK(plan.network_text().starts_with("a rank sends "));
  BOOST_CHECK(plan.network_text().find("; estimated at these: ") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_slower_network_and_more_nodes_never_make_a_step_shorter) {
  double last = 0;
  for (const char* bandwidth : {"100GB", "45GB", "10GB", "1GB"}) {
    const StepEstimate e =
        estimate("qwen3-1.7b",
                 fmt::format("--seq 4096 --micro-batch 4 --global-batch 128 --network-bandwidth {}",
                             bandwidth),
                 32, 8);
    BOOST_CHECK_GE(e.step_seconds, last);
    last = e.step_seconds;
  }
  last = 0;
  for (const int ranks : {8, 16, 64, 512}) {  // as much for every rank
    const StepEstimate e =
        estimate("qwen3-1.7b",
                 fmt::format("--seq 4096 --micro-batch 4 --global-batch {}", 4 * ranks), ranks, 8);
    BOOST_CHECK_GE(e.exposed_exchange_seconds, last);
    last = e.exposed_exchange_seconds;
  }
}

// Every pass over the blocks brings them again, but for the three of the ring where a pass turns.
BOOST_AUTO_TEST_CASE(parameters_in_shards_move_at_each_pass) {
  constexpr const char* kCommon = "--seq 4096 --micro-batch 2 --global-batch 16 ";
  const ModelConfig model = preset("qwen3-8b");
  const auto L = static_cast<double>(model.num_layers);
  const auto vocabulary = static_cast<double>(model.vocab_size * model.hidden_size);
  const double block = (static_cast<double>(parameter_count(model)) - 2 * vocabulary) / L;
  constexpr double kRing = 3;
  constexpr double kHostBytes = 32e9;  // a second, beside the products
  const StepEstimate host = estimate("qwen3-8b", std::string(kCommon) + "--params host", 1, 1);
  // 8 micro-batches forward and backward
  BOOST_CHECK_CLOSE(host.param_seconds, (L + 15 * (L - kRing)) * 2 * block / kHostBytes, 1e-6);
  const StepEstimate together =
      estimate("qwen3-8b", std::string(kCommon) + "--params host --batched-forward 8", 1, 1);
  BOOST_CHECK_CLOSE(together.param_seconds, (L + 8 * (L - kRing)) * 2 * block / kHostBytes, 1e-6);
  BOOST_CHECK_LT(together.exposed_param_seconds, host.exposed_param_seconds);
  // no more is hidden than there is work to hide it behind
  for (const char* beside : {"1", "32"}) {
    const StepEstimate slow =
        estimate("qwen3-8b",
                 fmt::format("--seq 512 --micro-batch 1 --global-batch 32 --params host "
                             "--batched-forward {}",
                             beside),
                 1, 1);
    BOOST_CHECK_LE(slow.param_seconds - slow.exposed_param_seconds, slow.compute_seconds);
  }
  // in 8 bits: once, where codes are stored
  const auto coded = [&](const char* storage) {
    return estimate(
        "qwen3-8b",
        fmt::format("{} --params host --precision fp8 --fp8-weights {}", kCommon, storage), 1, 1);
  };
  const StepEstimate stored = coded("stored");
  const StepEstimate one_layout = coded("one-layout");
  const StepEstimate at_use = coded("at-use");
  BOOST_CHECK_CLOSE(stored.param_seconds, L * 2 * block / kHostBytes, 1e-6);
  BOOST_CHECK_EQUAL(one_layout.param_seconds, stored.param_seconds);
  BOOST_CHECK_EQUAL(at_use.param_seconds, host.param_seconds);
  BOOST_CHECK_LT(stored.compute_seconds, one_layout.compute_seconds);
  BOOST_CHECK_LT(one_layout.compute_seconds, at_use.compute_seconds);
  BOOST_CHECK_EQUAL(estimate("qwen3-8b", kCommon, 1, 1).param_seconds, 0);
  const StepEstimate sharded = estimate("qwen3-8b", std::string(kCommon) + "--zero 3", 16, 8);
  const StepEstimate whole = estimate("qwen3-8b", std::string(kCommon) + "--zero 2", 16, 8);
  BOOST_CHECK_EQUAL(sharded.compute_seconds, whole.compute_seconds);
  BOOST_CHECK_GT(sharded.step_seconds, whole.step_seconds);
  // a micro-batch a rank: both passes bring blocks in place of one gather
  BOOST_CHECK_CLOSE(sharded.network_bytes - whole.network_bytes, (L - kRing) * 2 * block / 8 / 2,
                    1e-6);
}

// Cards that were not measured are ordered as their makers' rates are, and the text says so.
BOOST_AUTO_TEST_CASE(rates_that_are_assumed_are_called_so) {
  constexpr const char* kCommon = "--seq 4096 --micro-batch 2 --global-batch 16 --card ";
  double last = 0;
  for (const char* card : {"a100", "h100", "h200", "b200"}) {
    const StepEstimate e = estimate("qwen3-0.6b", std::string(kCommon) + card, 1, 1);
    BOOST_TEST(e.tokens_per_second > last, card);
    last = e.tokens_per_second;
    const bool is_assumed = e.text().find("assumed rates") != std::string::npos;
    BOOST_TEST(is_assumed == !rates_are_measured(e.card), card);
    BOOST_TEST(is_assumed ==
               (std::string_view(card) == "a100" || std::string_view(card) == "b200"));
  }
  for (const char* refused : {"a100", "b200"}) {  // as in a run on them
    const std::string refusal =
        planned_card_refusal(options_of(std::string("--precision fp8 --card ") + refused));
    BOOST_TEST(refusal.find("compute capability") != std::string::npos, refused);
  }
  for (const char* fine : {"--card a100", "--precision fp8", "--precision fp8 --card h200"}) {
    BOOST_TEST(planned_card_refusal(options_of(fine)).empty(), fine);
  }
}

// Times of what the rates do not know are not shown.
BOOST_AUTO_TEST_CASE(steps_of_nothing_but_launches_are_not_estimated) {
  constexpr const char* kTiny = "--seq 64 --micro-batch 1 --global-batch 8 --steps 1000";
  const StepEstimate tiny = estimate("d12", kTiny, 1, 1);
  BOOST_TEST(tiny.is_bound_by_launches);
  BOOST_TEST(tiny.text() ==
             "A step this small is not estimated: launching its kernels takes longer than they "
             "do.\n");
  BOOST_TEST(tiny.basis_text().find("Not measured: steps this small") != std::string::npos);
  BOOST_TEST(run_length_text(options_of(kTiny), tiny) ==
             "The run: 1,000 steps of 512 tokens, 512,000 tokens in all\n");
  const StepEstimate large =
      estimate("qwen3-0.6b", "--seq 4096 --micro-batch 8 --global-batch 8", 1, 1);
  BOOST_TEST(!large.is_bound_by_launches);
  BOOST_TEST(large.text().find("tokens/s") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
