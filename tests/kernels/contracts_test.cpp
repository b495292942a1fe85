// What a kernel must not be given is refused before any work is queued.
#include "kernels/base/error.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

constexpr Index kRows = 4;
constexpr Index kWidth = 8;

}  // namespace

BOOST_AUTO_TEST_SUITE(contracts)

BOOST_AUTO_TEST_CASE(the_cpu_computes_in_f32_only) {
  TestBench bench(test_device());
  TestTensor x = bench.normal(DType::bf16, {kRows, kWidth});
  TestTensor gain = bench.normal(DType::bf16, {kWidth});
  TestTensor y = bench.poisoned(DType::bf16, {kRows, kWidth});
  BOOST_CHECK_THROW(
      bench.kernels().rms_norm_forward(
          {.x = x.view(), .gain = gain.view(), .y = y.view(), .eps = 0}, bench.stream()),
      ContractError);
}

BOOST_AUTO_TEST_CASE(a_wrong_number_of_elements_is_refused_by_name) {
  TestBench bench(test_device());
  TestTensor x = bench.normal(DType::f32, {kRows, kWidth});
  TestTensor gain = bench.normal(DType::f32, {kWidth + 1});
  TestTensor y = bench.poisoned(DType::f32, {kRows, kWidth});
  BOOST_CHECK_EXCEPTION(
      bench.kernels().rms_norm_forward(
          {.x = x.view(), .gain = gain.view(), .y = y.view(), .eps = 0}, bench.stream()),
      ContractError, [](const ContractError& error) {
        return error.message().find("'gain'") != std::string::npos;
      });
}

BOOST_AUTO_TEST_CASE(a_tensor_without_memory_is_refused) {
  TestBench bench(test_device());
  TestTensor y = bench.poisoned(DType::f32, {kRows, kWidth});
  TestTensor gain = bench.normal(DType::f32, {kWidth});
  const ConstTensorView planned(nullptr, DType::f32, {kRows, kWidth}, test_device());
  BOOST_CHECK_THROW(
      bench.kernels().rms_norm_forward({.x = planned, .gain = gain.view(), .y = y.view(), .eps = 0},
                                       bench.stream()),
      ContractError);
}

BOOST_AUTO_TEST_CASE(a_token_outside_the_table_is_refused) {
  TestBench bench(test_device());
  TestTensor table = bench.normal(DType::f32, {kRows, kWidth});
  TestTensor out = bench.poisoned(DType::f32, {2, kWidth});
  for (const double token : {-1.0, static_cast<double>(kRows)}) {
    TestTensor tokens = bench.of({0, token}, DType::i32, {2});
    BOOST_CHECK_THROW(
        bench.kernels().embedding_forward(
            {.tokens = tokens.view(), .order = {}, .table = table.view(), .out = out.view()},
            bench.stream()),
        ContractError);
  }
}

BOOST_AUTO_TEST_CASE(a_target_outside_the_vocabulary_is_refused) {
  TestBench bench(test_device());
  TestTensor logits = bench.normal(DType::f32, {1, kWidth});
  TestTensor scale = bench.of({1}, DType::f32, {1});
  TestTensor loss = bench.poisoned(DType::f32, {1});
  for (const double target : {-1.0, static_cast<double>(kWidth)}) {
    TestTensor targets = bench.of({target}, DType::i32, {1});
    BOOST_CHECK_THROW(bench.kernels().softmax_cross_entropy({.logits = logits.view(),
                                                             .vocab = kWidth,
                                                             .ld = kWidth,
                                                             .targets = targets.view(),
                                                             .ignore_target = -100,
                                                             .weights = {},
                                                             .terms = {},
                                                             .gradient = LogitsGradient::write,
                                                             .loss = loss.view(),
                                                             .correct = {},
                                                             .scale = scale.view()},
                                                            bench.stream()),
                      ContractError);
  }
}

BOOST_AUTO_TEST_CASE(a_workspace_that_is_too_small_is_refused) {
  TestBench bench(test_device());
  constexpr AttentionShape kShape = {
      .batch = 1, .sequence = kRows, .query_heads = 1, .kv_heads = 1, .head_dim = kWidth};
  TestTensor qkv = bench.normal(DType::f32, {kRows, 3 * kWidth});
  TestTensor out = bench.poisoned(DType::f32, {kRows, kWidth});
  TestTensor lse = bench.poisoned(DType::f32, {1, 1, kRows});
  TestTensor workspace = bench.poisoned(DType::u8, {64});
  BOOST_CHECK_THROW(bench.kernels().attention_forward({.shape = kShape,
                                                       .options = {},
                                                       .scale = 1,
                                                       .qkv = qkv.view(),
                                                       .rotated_qk = {},
                                                       .out = out.view(),
                                                       .lse = lse.view(),
                                                       .workspace = workspace.view()},
                                                      bench.stream()),
                    ContractError);
}

BOOST_AUTO_TEST_CASE(rotated_rows_as_wide_as_the_fused_ones_are_refused) {
  TestBench bench(test_device());
  constexpr RotaryShape kShape = {
      .tokens = kRows, .sequence = kRows, .query_heads = 1, .kv_heads = 1, .head_dim = kWidth};
  TestTensor qkv = bench.normal(DType::f32, {kRows, 3 * kWidth});
  TestTensor angles = bench.normal(DType::f32, {kRows, kWidth / 2});
  TestTensor rotated = bench.poisoned(DType::f32, {kRows, 3 * kWidth});
  BOOST_CHECK_THROW(bench.kernels().rotary_forward({.shape = kShape,
                                                    .qkv = qkv.view(),
                                                    .cos = angles.view(),
                                                    .sin = angles.view(),
                                                    .q_gain = {},
                                                    .k_gain = {},
                                                    .rotated_qk = rotated.view(),
                                                    .eps = 0},
                                                   bench.stream()),
                    ContractError);
}

BOOST_AUTO_TEST_CASE(micro_batches_that_do_not_belong_to_the_step_are_refused) {
  TestBench bench(test_device());
  TestTensor slices = bench.normal(DType::f32, {kRows, kWidth});
  TestTensor sum = bench.poisoned(DType::f32, {kWidth});
  AccumulateArgs args = {.slices = slices.view(),
                         .sum = sum.view(),
                         .partial = {},
                         .first = 0,
                         .count = kRows,
                         .total = kRows - 1,
                         .reduce_group = 1};
  BOOST_CHECK_THROW(bench.kernels().accumulate(args, bench.stream()), ContractError);
  args.total = kRows;
  args.reduce_group = 3;  // calls cut a group, and there is no place for it
  args.count = 2;
  BOOST_CHECK_THROW(bench.kernels().accumulate(args, bench.stream()), ContractError);
}

BOOST_AUTO_TEST_CASE(rows_of_a_product_that_overlap_are_refused) {
  TestBench bench(test_device());
  TestTensor a = bench.normal(DType::f32, {kRows, kWidth});
  TestTensor b = bench.normal(DType::f32, {kWidth, kWidth});
  TestTensor d = bench.poisoned(DType::f32, {kRows, kWidth});
  BOOST_CHECK_THROW(bench.kernels().gemm({.m = kRows,
                                          .n = kWidth,
                                          .k = kWidth,
                                          .transpose_a = Transpose::no,
                                          .transpose_b = Transpose::no,
                                          .a = a.view(),
                                          .lda = kWidth - 1,
                                          .b = b.view(),
                                          .ldb = kWidth,
                                          .beta = 0,
                                          .c = {},
                                          .bias = {},
                                          .d = d.view(),
                                          .ldd = kWidth,
                                          .workspace = {}},
                                         bench.stream()),
                    ContractError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
