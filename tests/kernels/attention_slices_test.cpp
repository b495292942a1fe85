#include "kernels/attention_slices.h"

#include <cmath>

#include "kernels/base/error.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

constexpr AttentionShape kShape = {
    .batch = 8, .sequence = 4096, .query_heads = 16, .kv_heads = 8, .head_dim = 128};
constexpr bool kIsCuda = TESSERA_TEST_DEVICE == DeviceKind::cuda;
constexpr std::size_t kMiB = std::size_t{1} << 20U;

AttentionOptions library(std::size_t slice_bytes) {
  return {.method = AttentionMethod::library,
          .order = AttentionOrder::deterministic,
          .slice_bytes = slice_bytes};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(attention_slices)

// Measured with cuDNN 9.14 on an H100, in MiB rounded up.
BOOST_AUTO_TEST_CASE(the_formula_equals_what_cudnn_was_seen_to_ask_for) {
  struct Seen {
    AttentionShape shape;
    std::size_t mib;
  };
  constexpr std::size_t kUnlimited = std::size_t{1} << 40U;
  for (const Seen& seen :
       {Seen{kShape, 4354}, Seen{{4, 4096, 16, 8, 128}, 2177}, Seen{{1, 4096, 32, 8, 128}, 1089},
        Seen{{1, 16384, 32, 8, 128}, 16642}, Seen{{32, 1024, 12, 12, 64}, 770}}) {
    const std::size_t bytes = tessera::attention_slices(seen.shape, library(kUnlimited)).bytes;
    BOOST_CHECK_EQUAL((bytes + kMiB - 1) / kMiB, seen.mib);
  }
}

BOOST_AUTO_TEST_CASE(slices_keep_within_the_limit_and_are_as_equal_as_can_be) {
  // One sequence of kShape takes 544.25 MiB; its 8 groups 68 MiB each.
  const auto slices = [](std::size_t mib) {
    const AttentionSlices cut = tessera::attention_slices(kShape, library(mib * kMiB));
    BOOST_CHECK_LE(cut.bytes, mib * kMiB);
    return cut;
  };
  BOOST_CHECK_EQUAL(slices(5000).sequences, 8);
  BOOST_CHECK_EQUAL(slices(4000).sequences, 4);  // 7 would fit, but 4 + 4 are more even
  BOOST_CHECK_EQUAL(slices(1700).sequences, 3);
  BOOST_CHECK_EQUAL(slices(1700).groups, 8);
  BOOST_CHECK_EQUAL(slices(540).sequences, 1);
  BOOST_CHECK_EQUAL(slices(540).groups, 4);
  BOOST_CHECK_EQUAL(slices(70).groups, 1);
}

// The default of --attention-slice-bytes takes any sequence up to 131,072 tokens, in tiles where
// one head's scores exceed it; and where they do not, as before.
BOOST_AUTO_TEST_CASE(long_sequences_are_cut_into_tiles_that_keep_within_the_limit) {
  constexpr std::size_t kDefault = 2400 * kMiB;
  AttentionShape shape = {
      .batch = 1, .sequence = 0, .query_heads = 16, .kv_heads = 8, .head_dim = 128};
  const auto cut = [&shape](Index sequence, std::size_t limit) {
    shape.sequence = sequence;
    const AttentionSlices slices = tessera::attention_slices(shape, library(limit));
    BOOST_CHECK_LE(slices.bytes, limit);
    return slices;
  };
  BOOST_CHECK_EQUAL(cut(16384, kDefault).tile, 0);
  for (const Index sequence : {32768, 65536, 131071, 131072}) {
    BOOST_TEST_CONTEXT(sequence) {
      BOOST_CHECK_EQUAL(cut(sequence, kDefault).tile, 8192);
      BOOST_CHECK_GE(cut(sequence, kDefault).groups, 4);
      BOOST_CHECK_EQUAL(cut(sequence, 900 * kMiB).tile, 8192);
      BOOST_CHECK_LT(cut(sequence, 250 * kMiB).tile, 8192);
    }
  }
  // Nearly equal tiles: no last one of a few queries.
  for (const Index sequence : {24577, 25000, 32769, 40961}) {
    BOOST_TEST_CONTEXT(sequence) {
      const Index tile = cut(sequence, kDefault).tile;
      BOOST_CHECK_LE(tile, 8192);
      BOOST_CHECK_EQUAL(tile % 8, 0);
      const Index last = sequence - (sequence - 1) / tile * tile;
      BOOST_CHECK_GE(last, tile - 8 * ((sequence + tile - 1) / tile));
    }
  }
  shape.query_heads = 32;  // qwen3-8b
  BOOST_CHECK_EQUAL(cut(131072, kDefault).tile, 8192);
  shape.window = 4096;  // a tile's queries and the keys before them
  BOOST_CHECK_EQUAL(attention_tile_room(shape, cut(131072, kDefault)).keys, 8192 + 4095);
  shape.window = 100000;
  BOOST_CHECK_GT(cut(131072, kDefault).tile, 0);
  BOOST_CHECK_THROW((void)cut(131072, 20 * kMiB), ConfigError);
}

BOOST_AUTO_TEST_CASE(the_parts_of_a_tiled_workspace_do_not_overlap) {
  for (const Index window : {0, 300}) {
    const AttentionShape shape = {.batch = 2,
                                  .sequence = 1023,
                                  .query_heads = 6,
                                  .kv_heads = 3,
                                  .head_dim = 64,
                                  .window = window};
    const AttentionSlices slices = {.sequences = 1, .groups = 2, .tile = 256, .bytes = 0};
    const AttentionTileRoom room = attention_tile_room(shape, slices);
    constexpr std::size_t kWidth =
        std::size_t{2} * 64;  // of the slice's keys; queries have twice as much
    const std::size_t rows = window == 0 ? 256 : 0;
    const std::size_t keys = window == 0 ? 256 : 555;
    BOOST_CHECK_GE(room.query_sums, room.key_sums + std::size_t{2} * 1023 * kWidth * 4);
    BOOST_CHECK_GE(room.d_q, room.query_sums + rows * 2 * kWidth * 4);
    BOOST_CHECK_GE(room.d_k, room.d_q + rows * 2 * kWidth * 2);
    BOOST_CHECK_GE(room.d_v, room.d_k + keys * kWidth * 2);
    BOOST_CHECK_GE(room.lse, room.d_v + keys * kWidth * 2);
    BOOST_CHECK_GE(room.library, room.lse + 4 * std::size_t{1024} * 4);
    BOOST_CHECK_EQUAL(room.lse_row, 1024);
  }
}

// Its log-sum-exps would begin at an odd place; in the deterministic order they are copied.
BOOST_AUTO_TEST_CASE(a_slice_that_cudnn_could_not_read_is_a_tile_or_refused) {
  const AttentionShape odd = {
      .batch = 3, .sequence = 1023, .query_heads = 2, .kv_heads = 1, .head_dim = 64};
  const std::size_t whole = tessera::attention_slices(odd, library(kMiB << 10U)).bytes;
  BOOST_CHECK_EQUAL(tessera::attention_slices(odd, library(whole)).tile, 0);
  const AttentionSlices tiled = tessera::attention_slices(odd, library(whole / 2));
  BOOST_CHECK_EQUAL(tiled.tile, 1023);
  BOOST_CHECK_LE(tiled.bytes, whole / 2);
  AttentionOptions fast = library(kMiB << 10U);
  fast.order = AttentionOrder::fast;
  fast.slice_bytes = tessera::attention_slices(odd, fast).bytes / 2;
  BOOST_CHECK_THROW((void)tessera::attention_slices(odd, fast), ConfigError);
}

BOOST_AUTO_TEST_CASE(what_cuda_does_not_take_is_reported_by_the_plan_in_any_build) {
  AttentionShape shape = kShape;
  BOOST_CHECK_THROW(
      (void)attention_workspace_bytes(DeviceKind::cuda, shape, DType::f32, library(kMiB << 10U)),
      ConfigError);
  for (const Index head_dim : {12, 264}) {
    shape.head_dim = head_dim;
    BOOST_CHECK_THROW(
        (void)attention_workspace_bytes(DeviceKind::cuda, shape, DType::bf16, AttentionOptions{}),
        ConfigError);
  }
}

// On CUDA: cuDNN over slices of sequences and of heads against cuDNN over the whole.
BOOST_AUTO_TEST_CASE(slices_give_what_the_whole_gives, *boost::unit_test::enable_if<kIsCuda>()) {
  TestBench bench(test_device());
  constexpr AttentionShape kSmall = {
      .batch = 3, .sequence = 256, .query_heads = 6, .kv_heads = 3, .head_dim = 64};
  const Index tokens = kSmall.batch * kSmall.sequence;
  const Index row = (kSmall.query_heads + 2 * kSmall.kv_heads) * kSmall.head_dim;
  const Index out_row = kSmall.query_heads * kSmall.head_dim;
  TestTensor qkv = bench.normal(DType::bf16, {tokens, row});
  const Index qk_row = row - kSmall.kv_heads * kSmall.head_dim;
  std::vector<double> qk_values;
  for (Index n = 0; n < tokens; ++n) {
    const auto from = qkv.values.begin() + n * row;
    qk_values.insert(qk_values.end(), from, from + qk_row);
  }
  TestTensor qk = bench.of(qk_values, DType::bf16, {tokens, qk_row});
  TestTensor d_out = bench.normal(DType::bf16, {tokens, out_row});
  const auto gradient = [&](std::size_t slice_bytes, const ConstTensorView& rotated_qk) {
    const AttentionOptions options = library(slice_bytes);
    TestTensor workspace =
        bench.poisoned(DType::u8, {static_cast<Index>(attention_workspace_bytes(
                                      DeviceKind::cuda, kSmall, DType::bf16, options))});
    TestTensor out = bench.poisoned(DType::bf16, {tokens, out_row});
    TestTensor lse =
        bench.poisoned(DType::f32, {kSmall.batch, kSmall.query_heads, kSmall.sequence});
    TestTensor d_qkv = bench.poisoned(DType::bf16, {tokens, row});
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(kSmall.head_dim)));
    bench.kernels().attention_forward({.shape = kSmall,
                                       .options = options,
                                       .scale = scale,
                                       .qkv = qkv.view(),
                                       .rotated_qk = rotated_qk,
                                       .out = out.view(),
                                       .lse = lse.view(),
                                       .workspace = workspace.view()},
                                      bench.stream());
    bench.kernels().attention_backward({.shape = kSmall,
                                        .options = options,
                                        .scale = scale,
                                        .qkv = qkv.view(),
                                        .rotated_qk = rotated_qk,
                                        .out = out.view(),
                                        .lse = lse.view(),
                                        .d_out = d_out.view(),
                                        .d_qkv = d_qkv.view(),
                                        .workspace = workspace.view()},
                                       bench.stream());
    return bench.read(d_qkv.view());
  };
  const std::size_t whole = tessera::attention_slices(kSmall, library(kMiB << 10U)).bytes;
  const std::vector<double> expected = gradient(whole, {});
  check_equal(gradient(whole, qk.view()), expected, "d_qkv of q and k apart");
  const std::size_t sequence = whole / static_cast<std::size_t>(kSmall.batch);
  for (const std::size_t limit : {2 * sequence, sequence, sequence - 1, sequence / 3}) {
    BOOST_TEST_CONTEXT("slices of " << limit << " bytes") {
      check_equal(gradient(limit, {}), expected, "d_qkv");
      check_equal(gradient(limit, qk.view()), expected, "d_qkv of q and k apart");
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
