// Frequencies of every rope type against those of transformers 4.57.1 and 5.24.0, whose
// functions (modeling_rope_utils) were run over numpy in f32; both versions gave the same numbers.
#include "model/rope_scaling.h"

#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"

namespace tessera::test {
namespace {

constexpr double kTheta = 500000;
constexpr Index kHeadDim = 32;
constexpr Index kMaxPosition = 40960;

struct Recorded {
  std::string name;
  RopeScaling scaling;
  Index length;
  double scale;
  std::vector<double> radians;
};

RopeScaling scaled(RopeType type, double factor) {
  RopeScaling scaling;
  scaling.type = type;
  scaling.factor = factor;
  return scaling;
}

RopeScaling yarn(double factor, Index original) {
  RopeScaling scaling = scaled(RopeType::yarn, factor);
  scaling.original_max_position = original;
  return scaling;
}

std::vector<Recorded> recorded() {
  RopeScaling deepseek = yarn(40, 4096);
  deepseek.beta_fast = 16;
  deepseek.beta_slow = 2;
  deepseek.truncate = false;
  deepseek.mscale = 0.7;
  deepseek.mscale_all_dim = 0.5;
  RopeScaling with_scale = yarn(2, kMaxPosition);
  with_scale.attention_factor = 1.25;
  return {
      {"linear",
       scaled(RopeType::linear, 2.5),
       100,
       1,
       {0.400000006, 0.176146656, 0.0775691047, 0.0341588408, 0.0150424121, 0.00662417617,
        0.00291706598, 0.00128457847, 0.00056568539, 0.000249108969, 0.000109699278, 4.83078984e-05,
        2.12731829e-05, 9.36799916e-06, 4.12535428e-06, 1.81666815e-06}},
      {"dynamic, a short sequence",
       scaled(RopeType::dynamic, 4),
       100,
       1,
       {1, 0.440366626, 0.193922758, 0.0853971019, 0.0376060307, 0.0165604409, 0.00729266508,
        0.00321144611, 0.00141421345, 0.000622772437, 0.000274248188, 0.000120769742,
        5.31829573e-05, 2.34199979e-05, 1.03133852e-05, 4.54167048e-06}},
      {"dynamic, a long sequence",
       scaled(RopeType::dynamic, 4),
       131072,
       1,
       {1, 0.37820968, 0.143042564, 0.0541000813, 0.0204611737, 0.00773861399, 0.00292681856,
        0.00110695115, 0.00041865962, 0.000158341136, 5.98861516e-05, 2.26495195e-05,
        8.56626775e-06, 3.23984546e-06, 1.22534084e-06, 4.63435782e-07}},
      {"yarn as Qwen3's",
       yarn(4, 32768),
       100,
       1.138629436111989,
       {1, 0.440366626, 0.193922758, 0.0853971019, 0.0376060307, 0.0165604409, 0.00729266508,
        0.00272972928, 0.000989949447, 0.000342524843, 0.000109699278, 3.01924356e-05,
        1.32957393e-05, 5.85499947e-06, 2.57834631e-06, 1.13541762e-06}},
      {"yarn as DeepSeek's",
       deepseek,
       100,
       1.0622887960785043,
       {1, 0.440366626, 0.193922758, 0.0853971019, 0.0376060307, 0.0135054756, 0.00314298389,
        0.000149111627, 3.53553369e-05, 1.55693106e-05, 6.85620444e-06, 3.01924365e-06,
        1.32957393e-06, 5.85500004e-07, 2.57834614e-07, 1.13541766e-07}},
      {"yarn with a scale of its own",
       with_scale,
       100,
       1.25,
       {1, 0.440366626, 0.193922758, 0.0853971019, 0.0376060307, 0.0165604409, 0.00729266508,
        0.0028903014, 0.00113137078, 0.000435940688, 0.00016454891, 6.03848712e-05, 2.65914787e-05,
        1.17099989e-05, 5.15669262e-06, 2.27083524e-06}},
      {"llama3",
       scaled(RopeType::llama3, 8),
       100,
       1,
       {1, 0.440366626, 0.193922758, 0.0853971019, 0.0376060307, 0.0165604409, 0.00729266508,
        0.00321144611, 0.000524846022, 7.78465546e-05, 3.42810235e-05, 1.50962178e-05,
        6.64786967e-06, 2.92749974e-06, 1.28917316e-06, 5.6770881e-07}},
  };
}

}  // namespace

BOOST_AUTO_TEST_SUITE(rope_scaling)

BOOST_AUTO_TEST_CASE(frequencies_are_those_of_transformers) {
  // transformers forms powers, and yarn's ramp, in f32: a few roundings of 2^-24
  constexpr double kTolerance = 3e-6;
  for (const Recorded& each : recorded()) {
    const RotaryFrequencies found =
        rotary_frequencies(each.scaling, kTheta, kHeadDim, kMaxPosition, each.length);
    BOOST_TEST_CONTEXT(each.name) {
      BOOST_TEST(found.scale == each.scale, boost::test_tools::tolerance(1e-14));
      BOOST_REQUIRE(found.radians.size() == each.radians.size());
      for (std::size_t i = 0; i < each.radians.size(); ++i) {
        BOOST_TEST(found.radians[i] == each.radians[i], boost::test_tools::tolerance(kTolerance));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(names_go_both_ways) {
  for (const RopeType type :
       {RopeType::none, RopeType::linear, RopeType::dynamic, RopeType::yarn, RopeType::llama3}) {
    BOOST_TEST((find_rope_type(rope_type_name(type)) == type));
  }
  BOOST_TEST(!find_rope_type("longrope"));
}

BOOST_AUTO_TEST_CASE(values_that_make_no_frequencies_are_refused) {
  for (const double factor : {0.0, -1.0, 1e400}) {
    BOOST_CHECK_THROW(check(scaled(RopeType::linear, factor)), ConfigError);
  }
  RopeScaling scaling = yarn(2, 4096);
  scaling.attention_factor = 0;
  BOOST_CHECK_THROW(check(scaling), ConfigError);
  BOOST_CHECK_THROW(check(yarn(2, 0)), ConfigError);
  for (const Recorded& each : recorded()) {
    BOOST_CHECK_NO_THROW(check(each.scaling));
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
