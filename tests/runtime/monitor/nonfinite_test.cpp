// What is not finite is named: parameters, gradients of one rank's shard, losses of one rank.
#define BOOST_TEST_MODULE nonfinite
#include "runtime/monitor/nonfinite.h"

#include <array>
#include <functional>
#include <limits>
#include <string>

#include <boost/test/unit_test.hpp>

#include "collectives/mpi_session.h"
#include "tests/support/run/small_run.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Runs the small model and calls `look` after the first step.
void after_first_step(const std::function<void(TrainingRun&, const StepReport&)>& look,
                      const std::function<void(TrainingRun&)>& before = {}) {
  const auto comm = make_communicator(session(), {});
  SmallRunOptions options = small_options();
  options.steps = 1;
  options.before = before;
  int seen = 0;
  options.after_step = [&](TrainingRun& run, const StepReport& report) {
    ++seen;
    look(run, report);
  };
  (void)run_small(options, *comm);
  BOOST_TEST(seen == 1);
}

// One master weight, the first of the unit, becomes `value` on the rank that owns it.
void poke_weight(TrainingRun& run, UnitId unit, float value) {
  if (run.shard().real_count(unit) > 0 && run.shard().range(unit).param_start == 0) {
    run.shard().write(unit, StateArray::master, 0, {&value, DType::f32, Shape{1}, Device{}});
  }
  run.trainer().gather_parameters();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(nonfinite)

BOOST_AUTO_TEST_CASE(tensors_are_named_with_their_counts) {
  ParamUnit unit{"block.0", {}, 10, GradPlace::block_slot};
  unit.tensors.push_back({"block.0.a", Shape{4}, 0, true});
  unit.tensors.push_back({"block.0.b", Shape{6}, 4, true});
  std::array<float, 10> values{};
  values[3] = kNaN;
  values[4] = -kInfinity;
  values[9] = kInfinity;
  std::vector<NonFiniteTensor> found;
  // in two pieces, cut inside of b
  add_nonfinite(unit, 0, {values.data(), DType::f32, Shape{7}, Device{}}, found);
  add_nonfinite(unit, 7, {values.data() + 7, DType::f32, Shape{3}, Device{}}, found);
  const std::vector<NonFiniteTensor> expected = {{"block.0.a", 1}, {"block.0.b", 2}};
  BOOST_TEST((found == expected));
  const std::array<BFloat16, 4> halves = {to_bfloat16(1), to_bfloat16(kNaN), to_bfloat16(3e38F),
                                          to_bfloat16(-kInfinity)};
  found.clear();
  add_nonfinite(unit, 0, {halves.data(), DType::bf16, Shape{4}, Device{}}, found);
  BOOST_TEST((found == std::vector<NonFiniteTensor>{{"block.0.a", 2}}));
  BOOST_TEST(nonfinite_text(expected) == "block.0.a (1 number), block.0.b (2 numbers)");
  const std::vector<NonFiniteTensor> many = {{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}};
  BOOST_TEST(nonfinite_text(many) == "a (1 number), b (1 number), c (1 number) and 1 more tensor");
}

BOOST_AUTO_TEST_CASE(good_parameters_are_found_good_and_hashed_alike) {
  after_first_step([](TrainingRun& run, const StepReport& report) {
    BOOST_TEST(!report.skipped);
    BOOST_TEST(report.nonfinite_losses == 0);
    const ParameterCheck check = check_parameters(run);
    BOOST_TEST(check.nonfinite.empty());
    BOOST_TEST(check.hash == run.parameter_hash());
  });
}

BOOST_AUTO_TEST_CASE(a_weight_that_is_not_finite_is_named_on_every_rank) {
  after_first_step(
      [](TrainingRun& run, const StepReport& report) {
        BOOST_TEST(report.skipped);
        const SkipReason reason =
            find_skip_reason(run, report, {.what = "the weights of X", .is_finite = false});
        BOOST_TEST(contains(reason.what, "the parameters block.1.attention.norm (1 number)"));
        BOOST_TEST(contains(reason.what, "the loss on rank"));
        BOOST_TEST(reason.advice == "the weights of X were not finite from the start: give others");
        BOOST_TEST(contains(find_skip_reason(run, report, {"the weights of X", true}).advice,
                            "no longer finite"));
      },
      [](TrainingRun& run) { poke_weight(run, 2, kNaN); });
}

BOOST_AUTO_TEST_CASE(a_gradient_that_alone_is_not_finite_is_named_by_tensor) {
  after_first_step([](TrainingRun& run, const StepReport& report) {
    run.trainer().synchronize();  // the update of this step takes its gradient
    const UnitId unit = 1;
    const Index real = run.shard().real_count(unit);
    if (real > 0 && run.shard().range(unit).param_start + real == run.layout().unit(unit).count) {
      data_as<float>(run.shard().grad(unit))[real - 1] = kNaN;  // the last of the unit
    }
    const SkipReason reason = find_skip_reason(run, report, {"the weights of X", true});
    BOOST_TEST(reason.what == "the gradient of block.0.mlp.down (1 number)");
    BOOST_TEST(!contains(reason.what, "loss"));
    BOOST_TEST(contains(reason.advice, "lower --lr"));
  });
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
