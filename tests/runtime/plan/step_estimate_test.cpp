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

namespace tessera::test {
namespace {

// Largest deviation of a row, and of all rows together (root mean square).
constexpr double kRowBound = 0.05;
constexpr double kAllBound = 0.03;

// A step that was measured: tokens/s as it stands in the file of jobs/bench/results.
struct Measured {
  const char* file;
  const char* figure;
  const char* model;
  int ranks;
  const char* options;
  bool updates = true;  // not a variant with update=none
};

constexpr const char* kH100 = "2026-11-28-h100.md";
constexpr const char* kBudget = "2026-11-28-h100-budget.md";
constexpr const char* kPaging = "2026-11-28-h100-flce-paging.md";
constexpr const char* kH200 = "2026-11-28-h200.md";
constexpr const char* kTwo = "2026-11-28-h200-two.md";
constexpr const char* kFour = "2026-11-28-h200-four.md";
constexpr const char* kCards = "2026-11-28-two-cards.md";  // after the rates were fixed

// What all rows of one model have in common, and what was paged.
#define TESSERA_06B "--seq 4096 --micro-batch 8 "
#define TESSERA_17B "--seq 4096 --micro-batch 4 "
#define TESSERA_D12 "--seq 1024 --micro-batch 32 "
#define TESSERA_1PAGED "--seq 4096 --micro-batch 1 --resident-bytes none --recompute block "
#define TESSERA_H200 "--card h200 "
#define TESSERA_NCCL "--peer-copies off "

const std::vector<Measured>& measured_steps() {
  static const std::vector<Measured> rows = {
      {kH100, "89,270", "qwen3-0.6b", 1, TESSERA_06B "--global-batch 8"},
      {kH100, "90,259", "qwen3-0.6b", 1, TESSERA_06B "--global-batch 8"},
      {kH100, "171,350", "qwen3-0.6b", 2, TESSERA_NCCL TESSERA_06B "--global-batch 16"},
      {kH100, "523,327", "d12", 1, TESSERA_D12 "--global-batch 32"},
      {kH100, "1,005,273", "d12", 2, TESSERA_NCCL TESSERA_D12 "--global-batch 64"},
      {kH100, "42,480", "qwen3-1.7b", 1, TESSERA_17B "--global-batch 4"},
      {kH100, "83,767", "qwen3-1.7b", 2, TESSERA_NCCL TESSERA_17B "--global-batch 8"},
      {kH100, "143,538", "qwen2.5-0.5b", 1, "--seq 1024 --micro-batch 16 --global-batch 16"},
      {kH100, "21,320", "qwen3-1.7b", 1, TESSERA_17B "--global-batch 4 --resident-bytes none"},
      {kBudget, "42,689", "qwen3-1.7b", 1, TESSERA_17B "--global-batch 4"},
      {kBudget, "43,118", "qwen3-1.7b", 1, TESSERA_17B "--global-batch 4 --page-bytes 128MiB"},
      {kBudget, "43,661", "qwen3-1.7b", 1, TESSERA_17B "--global-batch 4 --page-bytes 128MiB"},
      {kBudget, "521,524", "d12", 1, TESSERA_D12 "--global-batch 32"},
      {kBudget, "524,429", "d12", 1, TESSERA_D12 "--global-batch 32 --page-bytes 128MiB"},
      {kBudget, "547,258", "d12", 1,
       "--seq 1024 --micro-batch 64 --global-batch 64 --page-bytes 128MiB"},
      {kBudget, "90,142", "qwen3-0.6b", 1, TESSERA_06B "--global-batch 8 --page-bytes 128MiB"},
      {kBudget, "150,604", "qwen2.5-0.5b", 1,
       "--seq 1024 --micro-batch 32 --global-batch 32 --page-bytes 128MiB"},
      {kBudget, "12,894", "qwen3-4b", 1, TESSERA_1PAGED "--global-batch 16 --breadth-first 8"},
      {kBudget, "14,987", "qwen3-4b", 1, TESSERA_1PAGED "--global-batch 16 --breadth-first 8",
       false},
      {kPaging, "7316", "qwen3-8b", 1, TESSERA_1PAGED "--global-batch 16 --breadth-first 8"},
      {kPaging, "9143", "qwen3-8b", 1, TESSERA_1PAGED "--global-batch 16 --breadth-first 8", false},
      {kPaging, "6854", "qwen3-8b", 1, TESSERA_1PAGED "--global-batch 16"},
      {kH200, "176,042", "qwen3-0.6b", 2,
       TESSERA_H200 TESSERA_NCCL TESSERA_06B "--global-batch 32"},
      {kH200, "91,165", "qwen3-0.6b", 1, TESSERA_H200 TESSERA_06B "--global-batch 16"},
      {kH200, "554454", "d12", 1, TESSERA_H200 TESSERA_D12 "--global-batch 32"},
      {kH200, "370770", "d12", 1,
       TESSERA_H200 TESSERA_D12 "--global-batch 32 --resident-bytes none --recompute block"},
      {kH200, "90525", "qwen3-0.6b", 1, TESSERA_H200 "--seq 4096 --micro-batch 4 --global-batch 4"},
      {kH200, "50805", "qwen3-0.6b", 1,
       TESSERA_H200 "--seq 4096 --micro-batch 4 --global-batch 4 --resident-bytes none "
                    "--recompute block"},
      {kH200, "42220", "qwen3-1.7b", 1, TESSERA_H200 "--seq 4096 --micro-batch 2 --global-batch 2"},
      {kH200, "13639", "qwen3-1.7b", 1,
       TESSERA_H200 "--seq 4096 --micro-batch 2 --global-batch 2 --resident-bytes none "
                    "--recompute block"},
      {kH200, "8,166", "qwen3-8b", 1,
       TESSERA_H200 TESSERA_1PAGED "--global-batch 16 --breadth-first 16"},
      {kH200, "9,252", "qwen3-8b", 1,
       TESSERA_H200 TESSERA_1PAGED "--global-batch 16 --breadth-first 16", false},
      {kH200, "7,476", "qwen3-8b", 1,
       TESSERA_H200 TESSERA_1PAGED "--global-batch 16 --breadth-first 8"},
      {kH200, "8,639", "qwen3-8b", 1,
       TESSERA_H200 TESSERA_1PAGED "--global-batch 32 --breadth-first 16"},
      {kH200, "8,919", "qwen3-8b", 1,
       TESSERA_H200 TESSERA_1PAGED "--global-batch 64 --breadth-first 16"},
      {kTwo, "186,573", "qwen3-0.6b", 2, TESSERA_H200 TESSERA_NCCL TESSERA_06B "--global-batch 64"},
      {kTwo, "185,299", "qwen3-0.6b", 2, TESSERA_H200 TESSERA_06B "--global-batch 16"},
      {kTwo, "187,600", "qwen3-0.6b", 2, TESSERA_H200 TESSERA_06B "--global-batch 64"},
      {kTwo, "90,072", "qwen3-1.7b", 2, TESSERA_H200 TESSERA_17B "--global-batch 8"},
      {kTwo, "91,190", "qwen3-1.7b", 2, TESSERA_H200 TESSERA_17B "--global-batch 32"},
      {kFour, "370,038", "qwen3-0.6b", 4, TESSERA_H200 TESSERA_06B "--global-batch 32"},
      {kFour, "371,496", "qwen3-0.6b", 4, TESSERA_H200 TESSERA_06B "--global-batch 128"},
      {kFour, "180,972", "qwen3-1.7b", 4, TESSERA_H200 TESSERA_17B "--global-batch 16"},
      {kFour, "182,855", "qwen3-1.7b", 4, TESSERA_H200 TESSERA_17B "--global-batch 64"},
      {kFour, "1,070,129", "d12", 2, TESSERA_H200 TESSERA_D12 "--global-batch 64"},
      {kFour, "1,123,799", "d12", 2, TESSERA_H200 "--seq 1024 --micro-batch 64 --global-batch 128"},
      {kFour, "307,725", "qwen2.5-0.5b", 2,
       TESSERA_H200 "--seq 1024 --micro-batch 32 --global-batch 64"},
      {kFour, "115,633", "qwen2.5-1.5b", 2,
       TESSERA_H200 "--seq 1024 --micro-batch 32 --global-batch 128"},
      {kFour, "32,252", "qwen3-4b", 2,
       TESSERA_H200 "--seq 4096 --micro-batch 1 --global-batch 32 --resident-bytes 3.4GB"},
      {kFour, "19,386", "qwen3-8b", 2,
       TESSERA_H200 "--seq 4096 --micro-batch 1 --global-batch 32 --resident-bytes 18.5GB"},
      {kCards, "151,201", "qwen2.5-0.5b", 1, "--seq 1024 --micro-batch 32 --global-batch 32"},
      {kCards, "17,653", "qwen3-4b", 1,
       "--seq 4096 --micro-batch 1 --global-batch 64 --resident-bytes 25.5GB"},
      {kCards, "187,025", "qwen3-0.6b", 2, TESSERA_H200 TESSERA_06B "--global-batch 16"},
      {kCards, "91,181", "qwen3-1.7b", 2, TESSERA_H200 TESSERA_17B "--global-batch 8"},
      {kCards, "35,415", "qwen3-4b", 2,
       TESSERA_H200 "--seq 4096 --micro-batch 1 --global-batch 128 --resident-bytes 3.4GB"},
      {kCards, "21,267", "qwen3-8b", 2,
       TESSERA_H200 "--seq 4096 --micro-batch 1 --global-batch 128 --resident-bytes 18.5GB"},
      {kCards, "1,081,171", "d12", 2, TESSERA_H200 TESSERA_D12 "--global-batch 64"},
      {kCards, "1,107,239", "d12", 2, TESSERA_H200 TESSERA_D12 "--global-batch 256"},
      {kCards, "309,003", "qwen2.5-0.5b", 2,
       TESSERA_H200 "--seq 1024 --micro-batch 32 --global-batch 64"},
      {kCards, "117,615", "qwen2.5-1.5b", 2,
       TESSERA_H200 "--seq 1024 --micro-batch 32 --global-batch 128"},
  };
  return rows;
}

TrainOptions options_of(const std::string& text) {
  std::vector<std::string> words = {"train", "--plan", "--device", "cuda"};
  std::istringstream in(text);
  std::copy(std::istream_iterator<std::string>(in), {}, std::back_inserter(words));
  std::vector<const char*> argv;
  std::transform(words.begin(), words.end(), std::back_inserter(argv),
                 [](const std::string& word) { return word.c_str(); });
  return parse_options(static_cast<int>(argv.size()), argv.data()).options;
}

StepEstimate estimate(const std::string& model, const std::string& options, int ranks,
                      int of_node) {
  return MemoryPlan(
             options_of(options), preset(model), ranks,
             {.device_bytes = 0, .host_bytes = 0, .ranks_per_node = of_node, .node_ranks = of_node})
      .estimate();
}

double number_in(std::string figure) {
  std::erase(figure, ',');
  return std::stod(figure);
}

std::string contents_of(const std::string& file) {
  const char* golden = std::getenv("TESSERA_GOLDEN");
  BOOST_REQUIRE(golden != nullptr);
  std::ifstream in(std::filesystem::path(golden) / "../../jobs/bench/results" / file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(step_estimate)

// Prints the table of jobs/bench/results/estimate.md.
BOOST_AUTO_TEST_CASE(every_measured_step_is_estimated_within_its_bound) {
  double squares = 0;
  std::string table =
      "| measured in | model | ranks | options | measured s | estimate s | ratio |\n"
      "| --- | --- | --- | --- | --- | --- | --- |\n";
  for (const Measured& row : measured_steps()) {
    std::string text = row.options;
    if (text.find("--page-bytes") == std::string::npos) {
      text += " --page-bytes 8MiB";  // the default when these were measured
    }
    const TrainOptions options = options_of(text);
    const StepEstimate e = estimate(row.model, text, row.ranks, row.ranks);
    const double measured =
        static_cast<double>(options.global_batch * options.seq) / number_in(row.figure);
    const double estimated = e.step_seconds - (row.updates ? 0 : e.exposed_update_seconds);
    const double ratio = estimated / measured;
    table += fmt::format("| {} | {} | {} | `{}`{} | {:.4f} | {:.4f} | {:.3f} |\n", row.file,
                         row.model, row.ranks, row.options, row.updates ? "" : ", without update",
                         measured, estimated, ratio);
    squares += (ratio - 1) * (ratio - 1);
    BOOST_CHECK_MESSAGE(std::abs(ratio - 1) <= kRowBound, row.model << " " << row.options << ": "
                                                                    << estimated << " s for "
                                                                    << measured << " s, " << ratio);
    BOOST_CHECK_MESSAGE(contents_of(row.file).find(row.figure) != std::string::npos,
                        row.figure << " is not in " << row.file);
  }
  const double deviation = std::sqrt(squares / static_cast<double>(measured_steps().size()));
  fmt::print("{}root mean square deviation {:.3f}\n", table, deviation);
  BOOST_CHECK_LE(deviation, kAllBound);
}

BOOST_AUTO_TEST_CASE(what_travels_between_nodes_is_counted) {
  constexpr const char* kCommon = "--seq 4096 --micro-batch 1 --global-batch 16 ";
  const auto P = static_cast<double>(parameter_count(preset("qwen3-8b")));
  const StepEstimate flat = estimate("qwen3-8b", kCommon, 16, 8);
  const StepEstimate levels = estimate("qwen3-8b", std::string(kCommon) + "--sum-group 8", 16, 8);
  const StepEstimate native = estimate("qwen3-8b", std::string(kCommon) + "--reduce native", 16, 8);
  BOOST_CHECK(flat.route == ExchangeRoute::flat);
  BOOST_CHECK(levels.route == ExchangeRoute::two_levels);
  BOOST_CHECK(native.route == ExchangeRoute::native);
  const double gather = 2 * P / 8 / 2;  // bf16, in one half of it over 8 cards
  BOOST_CHECK_CLOSE(flat.network_bytes, 2 * P / 2 + gather, 1e-6);
  BOOST_CHECK_CLOSE(levels.network_bytes, 4 * P / 8 / 2 + gather, 1e-6);
  BOOST_CHECK_CLOSE(native.network_bytes, 2 * P / 8 / 2 + gather, 1e-6);
  // behind a network that the backward pass does not hide
  const std::string slow = std::string(kCommon) + "--network-bandwidth 10GB ";
  BOOST_CHECK_LT(estimate("qwen3-8b", slow + "--sum-group 8", 16, 8).step_seconds,
                 0.8 * estimate("qwen3-8b", slow, 16, 8).step_seconds);
  BOOST_CHECK_EQUAL(estimate("qwen3-8b", kCommon, 8, 8).network_bytes, 0);
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

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
