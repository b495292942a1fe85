// What is kept for the backward pass: how much of it, and what blocks and micro-batches share.
#include "model/activations.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"

namespace tessera::test {
namespace {

constexpr BatchShape kBatch = {.sequences = 3, .length = 8};
constexpr Index kLayers = 4;

ModelConfig a_config(bool qk_norm) {
  return {.vocab_size = 32,
          .hidden_size = 24,
          .intermediate_size = 40,
          .num_layers = kLayers,
          .num_heads = 6,
          .num_kv_heads = 2,
          .head_dim = 4,
          .qk_norm = qk_norm,
          .rope_theta = 1e4,
          .rope = {}};
}

using Sizes = std::map<std::string, std::size_t>;

Sizes sizes_of(const Arena& arena) {
  Sizes sizes;
  for (const ArenaEntry& entry : arena.entries()) {
    sizes[entry.name] += entry.bytes;
  }
  return sizes;
}

// As the table in the header has it.
Sizes expected_sizes(const ModelConfig& c, DType dtype, Recompute recompute, Index sets) {
  const bool attention = recompute == Recompute::attention || recompute == Recompute::block;
  const bool mlp = recompute == Recompute::mlp || recompute == Recompute::block;
  const Index tokens = kBatch.tokens();
  const auto bytes = [](Index copies, Index elements, DType type) {
    return static_cast<std::size_t>(copies * elements) * size_in_bytes(type);
  };
  const Index of_attention = attention ? 1 : kLayers;
  const Index q = c.num_heads * c.head_dim;
  const Index kv = c.num_kv_heads * c.head_dim;
  Sizes sizes = {
      {"activations/residual", bytes(kLayers + 1, tokens * c.hidden_size, dtype)},
      {"activations/qkv", bytes(of_attention, tokens * (q + 2 * kv), dtype)},
      {"activations/rotated qk", bytes(of_attention, c.qk_norm ? tokens * (q + kv) : 0, dtype)},
      {"activations/attended", bytes(of_attention, tokens * q, dtype)},
      {"activations/attention lse", bytes(of_attention, tokens * c.num_heads, DType::f32)},
      {"activations/middle",
       bytes(recompute == Recompute::block ? 1 : kLayers, tokens * c.hidden_size, dtype)},
      {"activations/gate up", bytes(mlp ? 1 : kLayers, tokens * 2 * c.intermediate_size, dtype)},
      {"activations/passing",
       bytes(1, tokens * (2 * c.hidden_size + c.intermediate_size + q + (q + 2 * kv)), dtype)},
      {"tables/rotary", bytes(2, kBatch.length * c.head_dim / 2, DType::f32)}};
  if (sets > 1) {
    sizes["activations/batched residual"] =
        bytes((sets - 1) * (kLayers + 1), tokens * c.hidden_size, dtype);
  }
  return sizes;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(activations)

BOOST_AUTO_TEST_CASE(sizes_are_those_of_the_table_at_every_level) {
  for (const bool qk_norm : {false, true}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const Recompute level :
           {Recompute::none, Recompute::attention, Recompute::mlp, Recompute::block}) {
        for (const Index sets : {1, 3}) {
          BOOST_TEST_CONTEXT("QK-norm " << qk_norm << ", " << dtype_name(dtype) << ", level "
                                        << static_cast<int>(level) << ", sets " << sets) {
            Arena arena({}, ArenaMode::dry_run);
            const Activations planned(a_config(qk_norm), kBatch, dtype, level, sets, {}, arena);
            Sizes sizes = sizes_of(arena);
            for (const auto& [name, size] : expected_sizes(a_config(qk_norm), dtype, level, sets)) {
              BOOST_TEST(sizes[name] == size, name);
              sizes.erase(name);
            }
            for (const auto& [name, size] : sizes) {
              BOOST_TEST(name.starts_with("workspaces/"), name);
            }
            Arena real({}, ArenaMode::allocate);
            const Activations allocated(a_config(qk_norm), kBatch, dtype, level, sets, {}, real);
            BOOST_TEST((sizes_of(real) == sizes_of(arena)));
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(blocks_share_what_a_level_drops_and_nothing_else) {
  struct Kept {
    const char* name;
    TensorView BlockActivations::*view;
    std::vector<Recompute> shared_at;
  };
  using enum Recompute;
  const std::vector<Kept> all = {{"residual", &BlockActivations::residual, {}},
                                 {"qkv", &BlockActivations::qkv, {attention, block}},
                                 {"rotated_qk", &BlockActivations::rotated_qk, {attention, block}},
                                 {"attended", &BlockActivations::attended, {attention, block}},
                                 {"lse", &BlockActivations::lse, {attention, block}},
                                 {"middle", &BlockActivations::middle, {block}},
                                 {"gate_up", &BlockActivations::gate_up, {mlp, block}},
                                 {"output", &BlockActivations::output, {}}};
  for (const Recompute level : {none, attention, mlp, block}) {
    Arena arena({}, ArenaMode::allocate);
    Activations activations(a_config(true), kBatch, DType::f32, level, 1, {}, arena);
    for (const Kept& kept : all) {
      const bool is_shared = std::ranges::find(kept.shared_at, level) != kept.shared_at.end();
      for (Index a = 0; a < kLayers; ++a) {
        for (Index b = 0; b < a; ++b) {
          BOOST_TEST(((activations.block(a).*kept.view).data ==
                      (activations.block(b).*kept.view).data) == is_shared,
                     kept.name << " of blocks " << a << " and " << b << ", level "
                               << static_cast<int>(level));
        }
      }
    }
    for (Index layer = 0; layer < kLayers; ++layer) {
      BOOST_TEST(activations.block(layer).output.data == activations.residual(layer + 1).data);
    }
  }
}

BOOST_AUTO_TEST_CASE(each_micro_batch_of_a_batched_forward_has_residuals_of_its_own) {
  Arena arena({}, ArenaMode::allocate);
  Activations activations(a_config(true), kBatch, DType::f32, Recompute::block, 2, {}, arena);
  std::vector<void*> residuals;
  void* const gate_up = activations.block(0).gate_up.data;
  for (const Index set : {0, 1}) {
    activations.use_residuals(set);
    for (Index layer = 0; layer <= kLayers; ++layer) {
      residuals.push_back(activations.residual(layer).data);
    }
    BOOST_TEST(activations.block(0).residual.data == activations.residual(0).data);
    BOOST_TEST(activations.block(0).gate_up.data == gate_up);
  }
  std::ranges::sort(residuals);
  BOOST_TEST((std::ranges::adjacent_find(residuals) == residuals.end()));
  BOOST_CHECK_THROW(activations.use_residuals(2), ContractError);
  BOOST_CHECK_THROW(activations.use_residuals(-1), ContractError);
}

BOOST_AUTO_TEST_CASE(rotary_tables_are_cosines_and_sines_of_positions) {
  Arena arena({}, ArenaMode::allocate);
  const Activations activations(a_config(true), kBatch, DType::f32, Recompute::none, 1, {}, arena);
  const ConstTensorView cosines = activations.cos();
  const ConstTensorView sines = activations.sin();
  BOOST_REQUIRE(cosines.shape == (Shape{kBatch.length, 2}));
  BOOST_REQUIRE(sines.shape == cosines.shape);
  for (Index t = 0; t < kBatch.length; ++t) {
    for (const Index i : {0, 1}) {
      const double angle = static_cast<double>(t) * (i == 0 ? 1 : 0.01);  // 1e4^(-2 i / 4)
      BOOST_CHECK_SMALL(data_as<float>(cosines)[2 * t + i] - std::cos(angle), 1e-6);
      BOOST_CHECK_SMALL(data_as<float>(sines)[2 * t + i] - std::sin(angle), 1e-6);
    }
  }
}

BOOST_AUTO_TEST_CASE(words_of_recompute_levels) {
  BOOST_TEST((parse_recompute("none") == Recompute::none));
  BOOST_TEST((parse_recompute("attention") == Recompute::attention));
  BOOST_TEST((parse_recompute("mlp") == Recompute::mlp));
  BOOST_TEST((parse_recompute("block") == Recompute::block));
  BOOST_CHECK_THROW((void)parse_recompute("all"), ConfigError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
