// Codes of weights and operands beside what the kernels make of the same tensors; and the gradients
// of the whole model in 8 bits beside those in f32.
#include "model/quantized_blocks.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "model/initialization.h"
#include "model/transformer.h"
#include "model/whole_model.h"
#include "tests/support/check.h"
#include "tests/support/test_bench.h"

namespace tessera::test {
namespace {

constexpr BatchShape kBatch = {.sequences = 4, .length = 128};

ModelConfig tiny() {
  ModelConfig config = preset("tiny");
  config.vocab_size = 256;
  return config;
}

PrecisionPolicy fp8(std::vector<LayerRange> not_quantized = {}) {
  return quantized(precision_of(DType::f32), QuantizationRecipe::tensor, std::move(not_quantized));
}

// Every unit's gradients, in f32.
class CollectedGradients final : public GradSink {
 public:
  CollectedGradients(const ParamLayout& layout, Arena& arena) {
    for (const ParamUnit& unit : layout.units()) {
      units_.push_back(arena.allocate(MemoryKind::device, DType::f32, {unit.count}, "gradients"));
    }
  }
  TensorView acquire(UnitId unit, Stream&) override {
    return units_.at(static_cast<std::size_t>(unit)).view();
  }
  void commit(UnitId, Stream&) override {}

 private:
  std::vector<DeviceBuffer> units_;
};

struct NamedGradient {
  std::string name;
  std::vector<double> values;
};

std::vector<NamedGradient> gradients_of(const PrecisionPolicy& precision, double scale = 1) {
  TestBench bench({});
  const ModelConfig config = tiny();
  const ParamLayout layout(config);
  Arena arena({}, ArenaMode::allocate);
  Activations activations(config, kBatch, DType::f32, Recompute::none, {}, InputPlacement::device,
                          {}, arena);
  FusedLinearCrossEntropy loss(bench.kernels(), arena, DType::f32, config.vocab_size,
                               config.hidden_size, kBatch.tokens(), {});
  std::optional<QuantizedBlocks> blocks;
  if (precision.recipe != QuantizationRecipe::none) {
    blocks.emplace(bench.kernels(), config, kBatch, QuantizedOptions{.precision = precision},
                   arena);
  }
  WholeModel params(
      layout, DType::f32,
      [&](UnitId unit, std::span<float> values) {
        initial_values(config, layout, unit, kSeed, 0, values);
      },
      arena, bench.stream());
  CollectedGradients grads(layout, arena);
  Transformer model(bench.kernels(), config, layout, kBatch, {}, activations, loss,
                    blocks ? &*blocks : nullptr);

  const Index tokens = kBatch.tokens();
  std::vector<double> inputs;
  for (Index i = 0; i < tokens; ++i) {
    // like text: few tokens are frequent, and each is likely to follow some others
    const auto words = philox(kSeed, 5, static_cast<std::uint64_t>(i));
    const auto rank = static_cast<std::uint32_t>(std::pow(256.0, uniform_from(words[0]))) - 1;
    const bool follows = words[1] % 2 == 0 && i > 0;
    inputs.push_back(
        follows ? static_cast<double>((static_cast<std::uint32_t>(inputs.back()) * 7 + 3) % 256)
                : static_cast<double>(rank % 256));
  }
  std::vector<double> targets(inputs.begin() + 1, inputs.end());
  targets.push_back(0);
  std::vector<double> order(inputs.size());
  std::iota(order.begin(), order.end(), 0.0);
  std::stable_sort(order.begin(), order.end(), [&inputs](double a, double b) {
    return inputs[static_cast<std::size_t>(a)] < inputs[static_cast<std::size_t>(b)];
  });
  TestTensor input = bench.of(inputs, DType::i32, {tokens});
  TestTensor target = bench.of(targets, DType::i32, {tokens});
  TestTensor sorted = bench.of(order, DType::i32, {tokens});
  TestTensor factor = bench.of({scale / static_cast<double>(tokens)}, DType::f32, {1});
  TestTensor losses = bench.poisoned(DType::f32, {tokens});
  model.forward_backward({input.view(), target.view(), sorted.view()}, factor.view(), losses.view(),
                         params, grads, bench.stream());

  std::vector<NamedGradient> named;
  for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
    const std::vector<double> all = bench.read(grads.acquire(unit, bench.stream()));
    for (const ParamTensor& tensor : layout.unit(unit).tensors) {
      named.push_back(
          {tensor.name,
           {all.begin() + tensor.offset, all.begin() + tensor.offset + tensor.count()}});
    }
  }
  return named;
}

double cosine(const std::vector<double>& a, const std::vector<double>& b) {
  const auto dot = [](const std::vector<double>& x, const std::vector<double>& y) {
    return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
  };
  return dot(a, b) / std::sqrt(dot(a, a) * dot(b, b));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(quantized_blocks)

BOOST_AUTO_TEST_CASE(gradients_of_the_whole_model_point_where_those_of_f32_do) {
  const std::vector<NamedGradient> exact = gradients_of(precision_of(DType::f32));
  const std::vector<NamedGradient> coarse = gradients_of(fp8());
  BOOST_REQUIRE(exact.size() == coarse.size());
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double near = cosine(exact[i].values, coarse[i].values);
    BOOST_TEST(near > 0.99, exact[i].name << ": " << near);
  }
}

// A power of two: the codes are the same whatever the loss is scaled by.
BOOST_AUTO_TEST_CASE(a_larger_loss_has_larger_gradients_of_the_same_codes) {
  constexpr double kFactor = 0x1p20;
  const std::vector<NamedGradient> small = gradients_of(fp8());
  const std::vector<NamedGradient> large = gradients_of(fp8(), kFactor);
  for (std::size_t i = 0; i < small.size(); ++i) {
    BOOST_TEST(cosine(small[i].values, large[i].values) > 1 - 1e-9, small[i].name);
  }
}

BOOST_AUTO_TEST_CASE(blocks_that_are_left_out_have_no_codes) {
  const KernelTable& kernels = kernel_table(DeviceKind::cpu);
  const auto bytes = [&](const PrecisionPolicy& precision,
                         CodeStorage storage = CodeStorage::stored) {
    Arena arena({}, ArenaMode::dry_run);
    const QuantizedBlocks planned(kernels, tiny(), kBatch,
                                  {.precision = precision, .storage = storage}, arena);
    std::size_t weights = 0;
    for (const ArenaEntry& entry : arena.entries()) {
      weights += entry.name.starts_with("fp8 weights/block") ? entry.bytes : 0;
    }
    return weights;
  };
  Index elements = 0;
  for (const LinearKind kind : kLinearLayers) {
    const auto [in, out] = linear_sizes(tiny(), kind);
    elements += in * out;
  }
  const auto block = static_cast<std::size_t>(2 * elements);
  BOOST_TEST(bytes(fp8()) == 4 * block);
  BOOST_TEST(bytes(fp8({{0, 0}, {2, 3}})) == block);
  BOOST_TEST(bytes(fp8(), CodeStorage::at_use) == block);
  BOOST_TEST(bytes(fp8(), CodeStorage::one_layout) == 4 * block / 2);
  Arena arena({}, ArenaMode::allocate);
  const QuantizedBlocks blocks(kernels, tiny(), kBatch, {.precision = fp8({{1, 2}})}, arena);
  BOOST_TEST((blocks.has(0) && !blocks.has(1) && !blocks.has(2) && blocks.has(3)));
}

BOOST_AUTO_TEST_CASE(weights_are_quantised_again_with_another_version_alone) {
  TestBench bench({});
  Arena arena({}, ArenaMode::allocate);
  QuantizedBlocks blocks(bench.kernels(), tiny(), kBatch, {.precision = fp8()}, arena);
  BOOST_CHECK_THROW((void)blocks.weight(0, LinearKind::qkv), ContractError);
  std::vector<TestTensor> first;
  std::vector<TestTensor> second;
  for (const LinearKind kind : kLinearLayers) {
    const auto [in, out] = linear_sizes(tiny(), kind);
    first.push_back(bench.normal(DType::f32, {out, in}, 0.02));
    second.push_back(bench.normal(DType::f32, {out, in}, 3));
  }
  const auto refresh = [&](std::vector<TestTensor>& weights, std::int64_t version) {
    blocks.refresh(0, {weights[0].view(), weights[1].view(), weights[2].view(), weights[3].view()},
                   {}, version, CodeUse::both, bench.stream());
    return bench.read(blocks.weight(0, LinearKind::down).codes);
  };
  const std::vector<double> codes = refresh(first, 0);
  check_equal(refresh(second, 0), codes, "the same version");
  const std::vector<double> others = refresh(second, 1);
  BOOST_TEST((others != codes));
  check_equal(refresh(first, 2), codes, "the first weights again");
  const WeightCodes weight = blocks.weight(0, LinearKind::down);
  const std::vector<double> transposed = bench.read(weight.transposed);
  const Index rows = weight.codes.shape[0];
  const Index columns = weight.codes.shape[1];
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < columns; ++c) {
      BOOST_REQUIRE_EQUAL(transposed[static_cast<std::size_t>(c * rows + r)],
                          codes[static_cast<std::size_t>(r * columns + c)]);
    }
  }
}

// The first of a version finds scales and counts; each pass makes the layout that it multiplies by.
BOOST_AUTO_TEST_CASE(codes_at_use_are_those_that_would_be_stored) {
  TestBench bench({});
  Arena arena({}, ArenaMode::allocate);
  QuantizedBlocks stored(bench.kernels(), tiny(), kBatch, {.precision = fp8()}, arena);
  QuantizedBlocks at_use(bench.kernels(), tiny(), kBatch,
                         {.precision = fp8(), .storage = CodeStorage::at_use}, arena);
  at_use.set_counting(true);
  zero_async(at_use.counts(), bench.stream());
  std::array<std::vector<TestTensor>, 2> weights;
  for (std::vector<TestTensor>& block : weights) {
    for (const LinearKind kind : kLinearLayers) {
      const auto [in, out] = linear_sizes(tiny(), kind);
      block.push_back(bench.normal(DType::f32, {out, in}, 0.02));
    }
  }
  const auto refresh = [&](QuantizedBlocks& blocks, Index layer, CodeUse use) {
    std::vector<TestTensor>& of = weights[static_cast<std::size_t>(layer)];
    blocks.refresh(layer, {of[0].view(), of[1].view(), of[2].view(), of[3].view()}, {}, 7, use,
                   bench.stream());
  };
  for (const Index layer : {0, 1, 0}) {
    refresh(stored, layer, CodeUse::both);
    for (const CodeUse use : {CodeUse::forward, CodeUse::backward}) {
      refresh(at_use, layer, use);
      for (const LinearKind kind : kLinearLayers) {
        const WeightCodes expected = stored.weight(layer, kind);
        const WeightCodes made = at_use.weight(layer, kind);
        if (use == CodeUse::forward) {
          check_equal(bench.read(made.codes), bench.read(expected.codes), linear_name(kind));
        } else {
          check_equal(bench.read(made.transposed), bench.read(expected.transposed),
                      linear_name(kind));
        }
      }
    }
  }
  BOOST_CHECK_THROW((void)at_use.weight(1, LinearKind::qkv), ContractError);
  BOOST_TEST(!at_use.holds(0, 7));
  const std::vector<double> counts = bench.read(at_use.counts());
  const auto [in, out] = linear_sizes(tiny(), LinearKind::qkv);
  BOOST_TEST(counts[static_cast<std::size_t>(OperandKind::weight) * kQuantizeCounts +
                    static_cast<std::size_t>(QuantizeCount::values)] == 2.0 * in * out);
}

// Passes up and down, an update between them: the other layout is that of the block that is used,
// with a lease or without.
BOOST_AUTO_TEST_CASE(codes_in_one_layout_are_transposed_for_backward_passes) {
  TestBench bench({});
  Arena arena({}, ArenaMode::allocate);
  QuantizedBlocks both(bench.kernels(), tiny(), kBatch, {.precision = fp8()}, arena);
  QuantizedBlocks one(
      bench.kernels(), tiny(), kBatch,
      {.precision = fp8(), .storage = CodeStorage::one_layout, .replaces_params = true}, arena);
  for (const std::int64_t version : {3, 4}) {
    for (const Index layer : {0, 1, 2, 3, 3, 2, 1, 0, 0, 1, 1, 0}) {
      std::array<ConstTensorView, kLinearKinds> weights;
      std::vector<TestTensor> numbers;
      numbers.reserve(kLinearKinds);
      for (const LinearKind kind : kLinearLayers) {
        const auto [in, out] = linear_sizes(tiny(), kind);
        numbers.push_back(bench.normal(DType::f32, {out, in}, 0.02 * static_cast<double>(version)));
        weights.at(static_cast<std::size_t>(kind)) = numbers.back().view();
      }
      both.refresh(layer, weights, {}, version, CodeUse::both, bench.stream());
      if (one.holds(layer, version)) {
        one.complete(layer, CodeUse::backward, bench.stream());
      } else {
        one.refresh(layer, weights, {}, version, CodeUse::forward, bench.stream());
        one.complete(layer, CodeUse::both, bench.stream());
      }
      for (const LinearKind kind : kLinearLayers) {
        const WeightCodes expected = both.weight(layer, kind);
        const WeightCodes made = one.weight(layer, kind);
        check_equal(bench.read(made.codes), bench.read(expected.codes), linear_name(kind));
        check_equal(bench.read(made.transposed), bench.read(expected.transposed),
                    linear_name(kind));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(sizes_that_cublaslt_does_not_take_are_refused_by_name) {
  BOOST_TEST(quantized_size_refusal(tiny(), kBatch).empty());
  const auto refused = [](const ModelConfig& config, const BatchShape& batch, const char* part) {
    const std::string text = quantized_size_refusal(config, batch);
    BOOST_TEST(text.find(part) != std::string::npos, text);
  };
  refused(tiny(), {.sequences = 1, .length = 24}, "--micro-batch times --seq, are 24");
  ModelConfig config = tiny();
  config.hidden_size = 120;
  refused(config, kBatch, "the hidden size is 120");
  config = tiny();
  config.intermediate_size = 392;
  refused(config, kBatch, "the intermediate size is 392");
  config = tiny();
  config.num_heads = 3;
  config.num_kv_heads = 1;
  config.head_dim = 8;
  refused(config, kBatch, "queries, keys and values is 40");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
