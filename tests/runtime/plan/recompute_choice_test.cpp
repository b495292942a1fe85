// Levels of recomputation by layer in the memory plan, and what --recompute auto makes of them.
#define BOOST_TEST_MODULE recompute_choice
#include "runtime/plan/recompute_choice.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

#include "kernels/base/error.h"
#include "runtime/run/options.h"

namespace tessera::test {
namespace {

constexpr std::size_t kGB = 1'000'000'000;
constexpr std::size_t kAmple = std::size_t{1} << 50U;
constexpr const char* kModel = "qwen3-1.7b";
constexpr Index kLayers = 28;  // its

using Words = std::vector<std::string>;

RunConfig options_of(const Words& more) {
  Words words = {"train", "--plan", "--seq=2048", "--global-batch=32"};
  words.insert(words.end(), more.begin(), more.end());
  std::vector<const char*> argv;
  argv.reserve(words.size());
  std::transform(words.begin(), words.end(), std::back_inserter(argv),
                 [](const std::string& word) { return word.c_str(); });
  return parse_options(static_cast<int>(argv.size()), argv.data()).config;
}

MemoryPlan plan_of(const Words& words, const std::string& recompute, std::size_t device_bytes,
                   std::size_t host_bytes = kAmple) {
  Words all = words;
  all.push_back("--recompute=" + recompute);
  return {options_of(all),
          preset(kModel),
          1,
          {.device_bytes = device_bytes, .host_bytes = host_bytes, .ranks_per_node = 1}};
}

std::string choice_of(const Words& words, std::size_t device_bytes,
                      std::size_t host_bytes = kAmple) {
  return plan_of(words, "auto", device_bytes, host_bytes).settings().scratch.recompute.text();
}

// What may be chosen, from nothing to whole blocks.
Words all_choices() {
  Words all = {"none", "attention", "mlp", "block"};
  for (Index layers = 1; layers < kLayers; ++layers) {
    for (const char* form :
         {"attention:{}", "mlp:{}", "block:{}", "block:{},attention", "block:{},mlp"}) {
      all.push_back(fmt::format(fmt::runtime(form), layers));
    }
  }
  return all;
}

// State without room on the device, and state and sums that the plan places.
const Words kPaged = {"--device=cuda", "--micro-batch=8", "--resident-bytes=none"};
const Words kPlaced = {"--device=cuda", "--micro-batch=8", "--moments=bf16"};
const Words kSums = {"--device=cuda", "--micro-batch=8", "--grad-offload=auto"};

}  // namespace

BOOST_AUTO_TEST_SUITE(recompute_choice)

BOOST_AUTO_TEST_CASE(each_layer_that_recomputes_takes_a_copy_off_the_plan) {
  const auto bytes = [](const std::string& recompute) {
    return plan_of(kPaged, recompute, 0).total(MemoryKind::device);
  };
  const ModelConfig model = preset(kModel);
  const auto tokens = static_cast<std::size_t>(8 * 2048);
  const std::size_t gate_up = tokens * 2 * static_cast<std::size_t>(model.intermediate_size) * 2;
  const std::size_t kept = bytes("none");
  for (const Index layers : {1, 2, 13, 27}) {
    const std::size_t saved = static_cast<std::size_t>(layers) * gate_up;
    BOOST_TEST(bytes(fmt::format("mlp:{}", layers)) == kept - saved);
  }
  BOOST_TEST(bytes("mlp:28") == bytes("mlp:27"));
  BOOST_TEST(bytes("mlp") == bytes("mlp:27"));
  BOOST_TEST(bytes("block:9,mlp:3") == bytes("mlp:3,block:9"));
  BOOST_TEST(bytes("block:9,mlp") < bytes("mlp"));
  BOOST_TEST(bytes("block:9,mlp") > bytes("block"));
}

BOOST_AUTO_TEST_CASE(recomputation_is_in_the_estimate_by_layer) {
  const auto seconds = [](const std::string& recompute) {
    return plan_of(kPaged, recompute, 0).estimate().recompute_seconds;
  };
  const double one = seconds("mlp:1");
  BOOST_TEST(seconds("none") == 0);
  BOOST_TEST(one > 0);
  BOOST_TEST(seconds("mlp:7") == 7 * one, boost::test_tools::tolerance(1e-2));
  BOOST_TEST(seconds("mlp") == seconds("mlp:27"));  // the last layer is never computed again
  BOOST_TEST(seconds("block:5,mlp:3") == seconds("block:5") + seconds("mlp:3"),
             boost::test_tools::tolerance(1e-2));
}

// Of all that fit, none has a step that is shorter by more than what whole pages and layers make of a
// curve.
BOOST_AUTO_TEST_CASE(auto_is_the_shortest_step_that_fits) {
  constexpr double kSteps = 1.01;
  for (const Words& words : {kPaged, kPlaced, kSums}) {
    for (const std::size_t device_bytes : {24 * kGB, 36 * kGB}) {
      const std::string chosen = choice_of(words, device_bytes);
      BOOST_TEST_CONTEXT(words.back() << ", " << device_bytes / kGB << " GB: " << chosen) {
        const MemoryPlan plan = plan_of(words, chosen, device_bytes);
        BOOST_TEST(plan.device_bytes() <= usable_device_bytes(device_bytes));
        double best = std::numeric_limits<double>::max();
        for (const std::string& choice : all_choices()) {
          const MemoryPlan other = plan_of(words, choice, device_bytes);
          if (other.device_bytes() <= usable_device_bytes(device_bytes)) {
            best = std::min(best, other.estimate().step_seconds);
          }
        }
        BOOST_TEST(plan.estimate().step_seconds <= kSteps * best);
      }
    }
  }
}

// Where nothing else makes room, one layer fewer does not fit.
BOOST_AUTO_TEST_CASE(auto_recomputes_in_no_more_layers_than_needed) {
  const std::size_t device_bytes = 28 * kGB;
  const std::string chosen = choice_of(kPaged, device_bytes);
  const std::size_t colon = chosen.find(':');
  BOOST_REQUIRE(colon != std::string::npos);
  const std::size_t comma = std::min(chosen.find(','), chosen.size());
  const Index layers = std::stoll(chosen.substr(colon + 1, comma - colon - 1));
  BOOST_REQUIRE(layers > 1);
  const std::string fewer =
      fmt::format("{}:{}{}", chosen.substr(0, colon), layers - 1, chosen.substr(comma));
  BOOST_TEST(plan_of(kPaged, fewer, device_bytes).device_bytes() >
             usable_device_bytes(device_bytes));
}

BOOST_AUTO_TEST_CASE(auto_is_none_where_all_fits_and_block_where_nothing_does) {
  BOOST_TEST(choice_of(kPaged, 0) == "none");
  BOOST_TEST(choice_of(kPaged, 141 * kGB) == "none");
  BOOST_TEST(choice_of(kPaged, 8 * kGB) == "block");
  BOOST_TEST(!plan_of(kPaged, "auto", 8 * kGB).refusal().empty());
  // on a CPU a node's memory is what there is
  const Words cpu = {"--device=cpu", "--micro-batch=4"};
  BOOST_TEST(choice_of(cpu, 0) == "none");
  const std::size_t all = plan_of(cpu, "none", 0).node_bytes();
  const std::size_t least = plan_of(cpu, "block", 0).node_bytes();
  const std::size_t host_bytes = (all + least) / 2;
  const std::string chosen = choice_of(cpu, 0, host_bytes);
  BOOST_TEST(chosen.find(':') != std::string::npos, chosen);
  BOOST_TEST(plan_of(cpu, chosen, 0, host_bytes).fits());
}

BOOST_AUTO_TEST_CASE(auto_keeps_inputs_on_the_host_only_where_blocks_are_recomputed) {
  const RunConfig chosen =
      with_recompute(options_of({"--device=cuda", "--micro-batch=8", "--resident-bytes=none",
                                 "--recompute=auto", "--offload-activations"}),
                     preset(kModel), 1, {.device_bytes = 28 * kGB});
  BOOST_TEST(chosen.memory.recompute->has(Recompute::block), chosen.memory.recompute->text());
}

BOOST_AUTO_TEST_CASE(a_refusal_names_as_many_layers_as_fit) {
  const std::size_t device_bytes = 16 * kGB;
  const Words words = {"--device=cuda", "--micro-batch=1", "--resident-bytes=none",
                       "--params=device"};
  const std::string refusal = plan_of(words, "none", device_bytes).refusal();
  const std::string option = "--recompute ";
  const std::size_t begin = refusal.find(option);
  BOOST_REQUIRE_MESSAGE(begin != std::string::npos, refusal);
  const std::size_t levels = begin + option.size();
  const std::string named = refusal.substr(levels, refusal.find(' ', levels) - levels);
  BOOST_TEST(named.find(':') != std::string::npos, refusal);
  BOOST_TEST(plan_of(words, named, device_bytes).fits(), refusal);
}

BOOST_AUTO_TEST_CASE(more_layers_than_the_model_has_are_refused) {
  const auto refusal = [](const std::string& recompute) -> std::string {
    try {
      (void)plan_of(kPaged, recompute, 0);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return {};
  };
  BOOST_TEST(refusal("mlp:29").find("--recompute mlp:29: 29 layers, and the model has 28") !=
             std::string::npos);
  BOOST_TEST(refusal("block:28,mlp").find("none is left for mlp") != std::string::npos);
  BOOST_TEST(refusal("block:27,mlp").empty());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
