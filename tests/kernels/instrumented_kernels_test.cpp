// An instrumented table: every kernel is reported once, with its own name and cost, and gives its
// own bits.
#include "kernels/instrumented_kernels.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "tests/kernels/every_kernel.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

class Listener final : public KernelObserver {
 public:
  struct Heard {
    std::string name;
    KernelCost cost;
    int ends = 0;
  };
  void begin(const KernelCall& call, Stream&) override { calls_.push_back({call.name, call.cost}); }
  void end(Stream&) override { calls_.back().ends += 1; }
  std::vector<Heard> take() { return std::exchange(calls_, {}); }

 private:
  std::vector<Heard> calls_;
};

// Of the shapes in every_kernel.cpp, f32: N 300, C 260, attention 2 x 4/2 x 150 x 32.
std::map<std::string, KernelCost> expected_costs() {
  constexpr double kF32 = 4;
  constexpr double kN = 300;
  constexpr double kC = 260;
  constexpr double kCount = 70001;
  constexpr double kHeads = 2.0 * 4 * 150 * 150 * 32;  // B Hq T T D
  constexpr double kQkv = kN * (4 + 2 * 2) * 32;
  constexpr double kOut = kN * 4 * 32;
  constexpr double kLse = 2 * 4 * 150;
  constexpr double kQk = kN * (4 + 2) * 32;
  constexpr double kTables = 2 * 150 * 16;
  return {
      // five slices of groups of two: the sum is written, and the fifth begins a partial one
      {"accumulate", {0, kF32 * (5 * kCount + 2 * kCount)}},
      {"cast_rows", {0, 5 * 35000 * (kF32 + 2)}},
      {"adamw", {0, kF32 * 8 * kCount}},
      {"sgd", {0, kF32 * 6 * kCount}},
      {"muon_momentum", {0, kF32 * 4 * kCount}},
      {"muon_normalize", {0, kF32 * 2 * kCount}},
      {"muon_update", {0, kF32 * 4 * kCount}},
      {"attention_forward", {2 * kHeads, kF32 * (kQkv + kOut + kLse)}},
      {"attention_backward", {5 * kHeads, kF32 * (2 * kQkv + 2 * kOut + kLse)}},
      {"embedding_forward", {0, kF32 * (2 * kN + kN * kC + 50 * kC)}},
      {"embedding_backward", {0, kF32 * (2 * kN + kN * kC + 2 * 50 * kC)}},
      {"gemm", {2 * kN * kC * kC, kF32 * (kN * kC + kC * kC + kC + 2 * kN * kC)}},
      {"adapter_gradients", {4 * kN * kC * 8, kF32 * (kN * kC + 2 * kN * 8 + 2 * kC * 8)}},
      {"abs_max", {0, kF32 * kN * kC}},
      {"quantize", {0, (kF32 + 2) * kN * kC}},
      // 70001 codes, 1094 scale codes, 5 scales and the mean, each rounded up to 16 bytes
      {"widen_nf4", {0, 35008 + 1104 + 32 + 16 + kF32 * kCount}},
      {"sum_of_squares", {0, kF32 * kN * kC}},
      {"loss_sum", {0, kF32 * kN * kC}},
      {"column_sum", {0, kF32 * (kN * kC + kC)}},
      {"rms_norm_forward", {0, kF32 * (2 * kN * kC + kC)}},
      {"rms_norm_backward", {0, kF32 * (5 * kN * kC + 2 * kC)}},
      {"rotary_forward", {0, kF32 * (2 * kQk + kTables + 2 * 32)}},
      {"rotary_backward", {0, kF32 * (3 * kQk + kTables + 4 * 32)}},
  };
}

}  // namespace

BOOST_AUTO_TEST_SUITE(instrumented_kernels)

BOOST_AUTO_TEST_CASE(every_kernel_is_reported_once_and_gives_its_own_bits) {
  TestBench bench(test_device());
  EveryKernel kernels(bench);
  Listener listener;
  const KernelTable& own = kernel_table(test_device().kind);
  const KernelTable with_reports = instrumented(own, listener);
  const std::map<std::string, KernelCost> costs = expected_costs();
  std::vector<std::string> named;
  for (const EveryKernel::Entry& entry : kernels.entries()) {
    bench.use_kernels(own);
    const std::vector<double> expected = kernels.results_of(entry);
    BOOST_CHECK_EQUAL(listener.take().size(), 0U);
    bench.use_kernels(with_reports);
    check_equal(kernels.results_of(entry), expected, entry.name);
    const std::vector<Listener::Heard> heard = listener.take();
    BOOST_REQUIRE_EQUAL(heard.size(), 1U);
    BOOST_CHECK_EQUAL(heard[0].name, entry.name);
    BOOST_CHECK_EQUAL(heard[0].ends, 1);
    BOOST_CHECK_MESSAGE(heard[0].cost.bytes > 0, entry.name << " moves bytes");
    if (const auto known = costs.find(entry.name); known != costs.end()) {
      BOOST_CHECK_EQUAL(heard[0].cost.flops, known->second.flops);
      BOOST_CHECK_EQUAL(heard[0].cost.bytes, known->second.bytes);
    }
    named.push_back(entry.name);
  }
  std::vector<std::string_view> names = kernel_names();
  std::sort(names.begin(), names.end());
  std::sort(named.begin(), named.end());
  BOOST_CHECK_EQUAL_COLLECTIONS(names.begin(), names.end(), named.begin(), named.end());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
