// A block's output and gradients beside a composition of plain loops in f64 and its central
// differences; and what a recompute level drops comes again bit-identical.
#include "model/transformer_block.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <boost/test/unit_test.hpp>

#include "tests/support/check.h"
#include "tests/support/run/reference_model.h"
#include "tests/support/test_bench.h"

namespace tessera::test {
namespace {

constexpr BatchShape kBatch = {.sequences = 2, .length = 5};
// f32's rounding, 6e-8, over the some hundred operations behind an element, of the largest one.
constexpr double kBound = 2e-5;

ModelConfig a_config(bool qk_norm, bool biases) {
  return {.vocab_size = 16,
          .hidden_size = 12,
          .intermediate_size = 10,
          .num_layers = 2,
          .num_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 4,
          .qk_norm = qk_norm,
          .attention_bias = biases,
          .attention_out_bias = biases,
          .mlp_bias = biases,
          .rope_theta = 100,
          .rms_norm_eps = 1e-3};
}

std::vector<ModelConfig> configs() {
  return {a_config(true, false), a_config(false, true)};
}

double largest_of(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) {
    largest = std::max(largest, std::abs(value));
  }
  return largest;
}

// Two blocks, their parameters, an input, and what the gradients of the last output are to be.
class Blocks {
 public:
  Blocks(TestBench& bench, ModelConfig config, Recompute recompute)
      : bench_(bench),
        config_(std::move(config)),
        layout_(config_),
        arena_(bench.device(), ArenaMode::allocate),
        activations_(config_, kBatch, DType::f32, recompute, {}, InputPlacement::device, {},
                     arena_),
        block_(bench.kernels(), config_, kBatch, {}, activations_) {
    for (Index layer = 0; layer < config_.num_layers; ++layer) {
      params_.push_back(bench.normal(DType::f32, {unit(layer).count}, 0.4, 0.2));
      grads_.push_back(bench.poisoned(DType::f32, {unit(layer).count}));
    }
    const Shape hidden = {kBatch.tokens(), config_.hidden_size};
    input_ = bench.normal(DType::f32, hidden);
    d_output_ = bench.normal(DType::f32, hidden);
    d_hidden_ = bench.of(d_output_.values, DType::f32, hidden);
  }

  // Of all blocks, or the first ones.
  void forward(Index layers) {
    copy_async(input_.view(), activations_.residual(0), bench_.stream());
    for (Index layer = 0; layer < layers; ++layer) {
      block_.forward(layer, params(layer), {}, bench_.stream());
    }
  }
  void backward(Index layer, Recompute dropped) {
    block_.backward(layer, params(layer), {},
                    block_tensors(unit(layer), grads_.at(static_cast<std::size_t>(layer)).view()),
                    d_hidden_.view(), InputGradient::needed, dropped, bench_.stream());
  }
  void backward(Recompute dropped) {
    for (Index layer = config_.num_layers; layer-- > 0;) {
      backward(layer, dropped);
    }
  }

  [[nodiscard]] const ParamUnit& unit(Index layer) const {
    return layout_.unit(static_cast<UnitId>(layer + 1));
  }
  [[nodiscard]] BlockTensors<ConstTensorView> params(Index layer) {
    return block_tensors(unit(layer),
                         ConstTensorView(params_.at(static_cast<std::size_t>(layer)).view()));
  }
  [[nodiscard]] const std::vector<double>& param_values(Index layer) const {
    return params_.at(static_cast<std::size_t>(layer)).values;
  }
  [[nodiscard]] std::vector<double> grads(Index layer) {
    return bench_.read(grads_.at(static_cast<std::size_t>(layer)).view());
  }
  [[nodiscard]] std::vector<double> residual(Index layer) {
    return bench_.read(activations_.residual(layer));
  }
  [[nodiscard]] std::vector<double> d_hidden() { return bench_.read(d_hidden_.view()); }
  [[nodiscard]] const std::vector<double>& input() const { return input_.values; }
  [[nodiscard]] const std::vector<double>& d_output() const { return d_output_.values; }
  [[nodiscard]] Activations& activations() noexcept { return activations_; }

 private:
  TestBench& bench_;
  ModelConfig config_;
  ParamLayout layout_;
  Arena arena_;
  Activations activations_;
  TransformerBlock block_;
  std::vector<TestTensor> params_;
  std::vector<TestTensor> grads_;
  TestTensor input_;
  TestTensor d_output_;
  TestTensor d_hidden_;
};

// All that the backward pass gives.
std::vector<double> results_of(Blocks& blocks) {
  std::vector<double> all = blocks.d_hidden();
  for (const Index layer : {0, 1}) {
    const std::vector<double> grads = blocks.grads(layer);
    all.insert(all.end(), grads.begin(), grads.end());
  }
  return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(transformer_block)

BOOST_AUTO_TEST_CASE(the_output_is_that_of_plain_loops_in_f64) {
  for (const ModelConfig& config : configs()) {
    TestBench bench({});
    Blocks blocks(bench, config, Recompute::none);
    blocks.forward(2);
    std::vector<double> x = blocks.input();
    for (const Index layer : {0, 1}) {
      x = reference_block(config, blocks.unit(layer), blocks.param_values(layer), std::move(x),
                          kBatch.length);
      check_close(blocks.residual(layer + 1), x, {kBound * largest_of(x)}, "output");
    }
  }
}

BOOST_AUTO_TEST_CASE(gradients_are_central_differences_of_the_f64_composition) {
  for (const ModelConfig& config : configs()) {
    TestBench bench({});
    Blocks blocks(bench, config, Recompute::none);
    blocks.forward(1);
    blocks.backward(0, Recompute::none);
    const auto objective = [&](const std::vector<double>& weights, const std::vector<double>& x) {
      const std::vector<double> output =
          reference_block(config, blocks.unit(0), weights, x, kBatch.length);
      double sum = 0;
      for (std::size_t i = 0; i < output.size(); ++i) {
        sum += output[i] * blocks.d_output()[i];
      }
      return sum;
    };
    const std::vector<double>& weights = blocks.param_values(0);
    const std::vector<double> d_input = central_differences(
        [&](const std::vector<double>& x) { return objective(weights, x); }, blocks.input());
    check_close(blocks.d_hidden(), d_input, {kBound * largest_of(d_input)}, "d_hidden");
    const std::vector<double> d_weights = central_differences(
        [&](const std::vector<double>& w) { return objective(w, blocks.input()); }, weights);
    const std::vector<double> grads = blocks.grads(0);
    for (const ParamTensor& tensor : blocks.unit(0).tensors) {
      const auto part = [&](const std::vector<double>& of) {
        return std::vector<double>(of.begin() + tensor.offset,
                                   of.begin() + tensor.offset + tensor.count());
      };
      const std::vector<double> expected = part(d_weights);
      BOOST_TEST(largest_of(expected) > 0, tensor.name);
      check_close(part(grads), expected, {kBound * largest_of(expected)}, tensor.name);
    }
  }
}

BOOST_AUTO_TEST_CASE(what_a_level_drops_is_computed_again_with_the_same_bits) {
  for (const ModelConfig& config : configs()) {
    TestBench stored_bench({});
    Blocks stored(stored_bench, config, Recompute::none);
    stored.forward(2);
    stored.backward(Recompute::none);
    const std::vector<double> expected = results_of(stored);
    for (const Recompute level : {Recompute::attention, Recompute::mlp, Recompute::block}) {
      BOOST_TEST_CONTEXT("level " << static_cast<int>(level)) {
        TestBench bench({});
        Blocks blocks(bench, config, level);
        blocks.forward(2);
        blocks.backward(level);
        check_equal(results_of(blocks), expected, "gradients");
        // The first block's are not there any more: it is the recomputation that brings them back.
        TestBench other_bench({});
        Blocks without(other_bench, config, level);
        without.forward(2);
        without.backward(Recompute::none);
        BOOST_TEST((results_of(without) != expected));
      }
    }
  }
}

// Also where everything is kept, a whole block may be recomputed from its input: forward passes of
// several micro-batches in a batch leave that alone.
BOOST_AUTO_TEST_CASE(a_block_needs_its_residual_alone) {
  TestBench bench({});
  Blocks blocks(bench, a_config(true, false), Recompute::none);
  blocks.forward(2);
  blocks.backward(Recompute::none);
  const std::vector<double> expected = results_of(blocks);
  TestBench again_bench({});
  Blocks again(again_bench, a_config(true, false), Recompute::none);
  again.forward(2);
  for (const Index layer : {0, 1}) {
    const BlockActivations a = again.activations().block(layer);
    for (const TensorView& view : {a.qkv, a.rotated_qk, a.attended, a.lse, a.middle, a.gate_up,
                                   again.activations().normed(), again.activations().product()}) {
      poison_async(view, again_bench.stream());
    }
  }
  again.backward(Recompute::block);
  check_equal(results_of(again), expected, "gradients");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
