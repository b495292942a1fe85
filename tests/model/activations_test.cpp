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
          .rope_theta = 1e4};
}

using Sizes = std::map<std::string, std::size_t>;

Sizes sizes_of(const Arena& arena) {
  Sizes sizes;
  for (const ArenaEntry& entry : arena.entries()) {
    sizes[entry.name] += entry.bytes;
  }
  return sizes;
}

// What four layers may be asked to recompute.
std::vector<RecomputeLevels> all_levels() {
  std::vector<RecomputeLevels> all;
  for (const char* text : {"none", "attention", "mlp", "block", "attention:2", "mlp:1", "mlp:3",
                           "mlp:4", "block:1", "block:3", "block:2,mlp", "block:1,attention:2",
                           "mlp:2,block:1", "attention:1,mlp:1,block"}) {
    all.push_back(parse_recompute(text, "--recompute"));
  }
  return all;
}

// Layers that keep what these levels drop: one at least.
Index copies(const RecomputeLevels& levels, std::initializer_list<Recompute> droppers) {
  Index kept = 0;
  for (Index layer = 0; layer < kLayers; ++layer) {
    kept += std::ranges::count(droppers, levels.of(layer)) == 0 ? 1 : 0;
  }
  return std::ranges::count(droppers, levels.of(kLayers - 1)) == 0 ? kept : kept + 1;
}

// As the table in the header has it.
Sizes expected_sizes(const ModelConfig& c, DType dtype, const RecomputeLevels& levels, Index sets,
                     Index adapter_width) {
  using enum Recompute;
  const Index tokens = kBatch.tokens();
  const auto bytes = [](Index copies, Index elements, DType type) {
    return static_cast<std::size_t>(copies * elements) * size_in_bytes(type);
  };
  const Index of_attention = copies(levels, {attention, block});
  const Index q = c.num_heads * c.head_dim;
  const Index kv = c.num_kv_heads * c.head_dim;
  Sizes sizes = {
      {"activations/residual", bytes(kLayers + 1, tokens * c.hidden_size, dtype)},
      {"activations/qkv", bytes(of_attention, tokens * (q + 2 * kv), dtype)},
      {"activations/rotated qk", bytes(of_attention, c.qk_norm ? tokens * (q + kv) : 0, dtype)},
      {"activations/attended", bytes(of_attention, tokens * q, dtype)},
      {"activations/attention lse", bytes(of_attention, tokens * c.num_heads, DType::f32)},
      {"activations/middle", bytes(copies(levels, {block}), tokens * c.hidden_size, dtype)},
      {"activations/gate up",
       bytes(copies(levels, {mlp, block}), tokens * 2 * c.intermediate_size, dtype)},
      {"activations/adapters",
       bytes(copies(levels, {attention, mlp, block}), tokens * adapter_width, dtype)},
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
      for (const RecomputeLevels& level : all_levels()) {
        for (const Index sets : {1, 3}) {
          const Index adapters = sets == 1 ? 0 : 5;
          BOOST_TEST_CONTEXT("QK-norm " << qk_norm << ", " << dtype_name(dtype) << ", "
                                        << level.text() << ", sets " << sets) {
            Arena arena({}, ArenaMode::dry_run);
            const Activations planned(a_config(qk_norm), kBatch, dtype, level, {sets},
                                      InputPlacement::device, {}, arena, adapters);
            Sizes sizes = sizes_of(arena);
            for (const auto& [name, size] :
                 expected_sizes(a_config(qk_norm), dtype, level, sets, adapters)) {
              BOOST_TEST(sizes[name] == size, name);
              sizes.erase(name);
            }
            for (const auto& [name, size] : sizes) {
              BOOST_TEST(name.starts_with("workspaces/"), name);
            }
            Arena real({}, ArenaMode::allocate);
            const Activations allocated(a_config(qk_norm), kBatch, dtype, level, {sets},
                                        InputPlacement::device, {}, real, adapters);
            BOOST_TEST((sizes_of(real) == sizes_of(arena)));
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_number_of_layers_saves_as_many_copies) {
  const auto gate_up = [](const char* text) {
    Arena arena({}, ArenaMode::dry_run);
    const Activations planned(a_config(true), kBatch, DType::bf16,
                              parse_recompute(text, "--recompute"), {}, InputPlacement::device, {},
                              arena);
    return sizes_of(arena).at("activations/gate up");
  };
  const std::size_t one = gate_up("mlp");
  BOOST_TEST(gate_up("none") == 4 * one);
  BOOST_TEST(gate_up("mlp:1") == 3 * one);
  BOOST_TEST(gate_up("mlp:2") == 2 * one);
  BOOST_TEST(gate_up("mlp:3") == one);
  BOOST_TEST(gate_up("mlp:4") == one);
}

// A layer that drops a buffer has that of the next layer that keeps it, or of the last one; in the
// backward pass it computes again what it drops, but for the last.
BOOST_AUTO_TEST_CASE(a_layer_that_drops_shares_the_copy_of_the_next_that_keeps) {
  for (const RecomputeLevels& levels : all_levels()) {
    Arena arena({}, ArenaMode::allocate);
    Activations activations(a_config(true), kBatch, DType::f32, levels, {}, InputPlacement::device,
                            {}, arena);
    for (Index layer = 0; layer + 1 < kLayers; ++layer) {
      const BlockActivations a = activations.block(layer);
      const BlockActivations next = activations.block(layer + 1);
      const Recompute level = levels.of(layer);
      BOOST_TEST((a.qkv.data == next.qkv.data) == drops_attention(level), levels.text());
      BOOST_TEST((a.middle.data == next.middle.data) == drops_middle(level), levels.text());
      BOOST_TEST((a.gate_up.data == next.gate_up.data) == drops_mlp(level), levels.text());
      BOOST_TEST((activations.recompute(layer) == level), levels.text());
    }
    BOOST_TEST((activations.recompute(kLayers - 1) == Recompute::none), levels.text());
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
    Activations activations(a_config(true), kBatch, DType::f32, level, {}, InputPlacement::device,
                            {}, arena);
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

// On the host: all but the last three of each set; on the device three for each set.
BOOST_AUTO_TEST_CASE(block_inputs_go_to_pinned_host_memory) {
  ModelConfig config = a_config(true);
  config.num_layers = 6;
  for (const Index sets : {1, 2}) {
    Arena arena({}, ArenaMode::dry_run);
    const Activations planned(config, kBatch, DType::bf16, Recompute::block, {sets},
                              InputPlacement::host, {}, arena);
    const Sizes sizes = sizes_of(arena);
    const std::size_t one =
        static_cast<std::size_t>(kBatch.tokens() * config.hidden_size) * size_in_bytes(DType::bf16);
    BOOST_TEST(sizes.at("activations/residual") == 3 * one);
    BOOST_TEST(sizes.at("offloaded activations/residual") ==
               4 * one * static_cast<std::size_t>(sets));
    BOOST_TEST(arena.total_bytes(MemoryKind::pinned) == sizes.at("offloaded activations/residual"));
  }
}

BOOST_AUTO_TEST_CASE(each_micro_batch_of_a_batched_forward_has_residuals_of_its_own) {
  Arena arena({}, ArenaMode::allocate);
  Activations activations(a_config(true), kBatch, DType::f32, Recompute::block, {2},
                          InputPlacement::device, {}, arena);
  std::vector<void*> residuals;
  void* const gate_up = activations.block(0).gate_up.data;
  for (const Index set : {0, 1}) {
    activations.use_set(set);
    for (Index layer = 0; layer <= kLayers; ++layer) {
      residuals.push_back(activations.residual(layer).data);
    }
    BOOST_TEST(activations.block(0).residual.data == activations.residual(0).data);
    BOOST_TEST(activations.block(0).gate_up.data == gate_up);
  }
  std::ranges::sort(residuals);
  BOOST_TEST((std::ranges::adjacent_find(residuals) == residuals.end()));
  BOOST_CHECK_THROW(activations.use_set(2), ContractError);
  BOOST_CHECK_THROW(activations.use_set(-1), ContractError);
}

BOOST_AUTO_TEST_CASE(rotary_tables_are_cosines_and_sines_of_positions) {
  Arena arena({}, ArenaMode::allocate);
  const Activations activations(a_config(true), kBatch, DType::f32, Recompute::none, {},
                                InputPlacement::device, {}, arena);
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

BOOST_AUTO_TEST_CASE(levels_are_given_to_layers_in_order) {
  using enum Recompute;
  const auto levels = [](const char* text) {
    const RecomputeLevels parsed = parse_recompute(text, "--recompute");
    BOOST_TEST(parsed.text() == text);
    std::vector<Recompute> of;
    for (Index layer = 0; layer < kLayers; ++layer) {
      of.push_back(parsed.of(layer));
    }
    return of;
  };
  using Levels = std::vector<Recompute>;
  BOOST_TEST((levels("none") == Levels{none, none, none, none}));
  BOOST_TEST((levels("attention") == Levels{attention, attention, attention, attention}));
  BOOST_TEST((levels("mlp") == Levels{mlp, mlp, mlp, mlp}));
  BOOST_TEST((levels("block") == Levels{block, block, block, block}));
  BOOST_TEST((levels("mlp:1") == Levels{mlp, none, none, none}));
  BOOST_TEST((levels("block:3") == Levels{block, block, block, none}));
  BOOST_TEST((levels("block:1,mlp") == Levels{block, mlp, mlp, mlp}));
  BOOST_TEST((levels("attention:1,mlp:1,block:1") == Levels{attention, mlp, block, none}));
  BOOST_TEST((parse_recompute("block", "").has(block)));
  BOOST_TEST((!parse_recompute("mlp:3", "").has(block)));
}

BOOST_AUTO_TEST_CASE(what_names_no_levels_is_refused_in_one_sentence) {
  const auto refusal = [](const char* text, Index layers) -> std::string {
    try {
      parse_recompute(text, "--recompute").require_layers(layers);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "taken";
  };
  const auto is_refused = [&](const char* text, const std::string& sentence) {
    BOOST_TEST((refusal(text, kLayers).find(": " + sentence) != std::string::npos),
               refusal(text, kLayers));
  };
  for (const char* text :
       {"all", "", "MLP", "none:2", "mlp:1,none", "auto,mlp", "mlp:2,,block", "0:2", ":2"}) {
    is_refused(text,
               "--recompute '" + std::string(text) + "': choose none, auto, or attention, mlp or");
  }
  for (const char* number : {"0", "-1", "x", "", "1.5", "1:2", "99999999999999999999"}) {
    is_refused(("mlp:" + std::string(number)).c_str(),
               "--recompute mlp:" + std::string(number) + ": the number of layers '" + number +
                   "' is not a whole number from 1 to 65536");
  }
  is_refused("mlp,",
             "--recompute mlp,: mlp without a number is for all layers that follow: give it last");
  is_refused("mlp,block:2",
             "--recompute mlp,block:2: mlp without a number is for all layers that follow");
  is_refused("mlp:5", "--recompute mlp:5: 5 layers, and the model has 4: give at most as many");
  is_refused("block:3,mlp:2", "--recompute block:3,mlp:2: 5 layers, and the model has 4");
  is_refused("block:4,mlp",
             "--recompute block:4,mlp: the model has 4 layers, and none is left for mlp");
  BOOST_TEST(refusal("mlp:4", kLayers) == "taken");
  BOOST_TEST(refusal("block:3,mlp", kLayers) == "taken");
  BOOST_TEST(refusal("block", 1) == "taken");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
