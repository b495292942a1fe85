#include "model/quantized_blocks.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/error.h"

namespace tessera {
namespace {

constexpr Index kInputScale = 0;
constexpr Index kGradientScale = 1;
constexpr Index kScales = 2;
// Elements from one scale to the next.
constexpr Index kScaleStride = kScaleAlignment / sizeof(float);

TensorView scale_at(DeviceBuffer& scales, Index number) {
  return scales.view().slice(number * kScaleStride, number * kScaleStride + 1);
}

// The beginning of `buffer` as codes.
TensorView codes_in(const TensorView& buffer, DType dtype, const Shape& shape) {
  return {buffer.data, dtype, shape, buffer.device};
}

}  // namespace

const char* linear_name(LinearKind kind) noexcept {
  switch (kind) {
    case LinearKind::qkv:
      return "qkv";
    case LinearKind::out:
      return "attention output";
    case LinearKind::gate_up:
      return "gate/up";
    case LinearKind::down:
      break;
  }
  return "down";
}

LinearSizes linear_sizes(const ModelConfig& config, LinearKind kind) {
  switch (kind) {
    case LinearKind::qkv:
      return {config.hidden_size, config.qkv_width()};
    case LinearKind::out:
      return {config.query_width(), config.hidden_size};
    case LinearKind::gate_up:
      return {config.hidden_size, 2 * config.intermediate_size};
    case LinearKind::down:
      break;
  }
  return {config.intermediate_size, config.hidden_size};
}

QuantizedBlocks::QuantizedBlocks(const KernelTable& kernels, const ModelConfig& config,
                                 const BatchShape& batch, const PrecisionPolicy& precision,
                                 Index sets, Arena& arena)
    : kernels_(kernels), row_(row_of(precision.recipe)), tokens_(batch.tokens()), layers_{} {
  const Index tokens = tokens_;
  const DeviceKind kind = arena.device().kind;
  const auto device = [&](DType dtype, const Shape& shape, const std::string& name) {
    return arena.allocate(MemoryKind::device, dtype, shape, name);
  };
  Index widest_in = 0;
  Index widest_out = 0;
  Index bytes = 0;
  std::size_t workspace = 0;
  for (const LinearKind each : kLinearLayers) {
    const auto [in, out] = linear_sizes(config, each);
    layers_[static_cast<std::size_t>(each)] = {.in = in, .out = out, .offset = bytes};
    bytes += 2 * in * out;
    widest_in = std::max(widest_in, in);
    widest_out = std::max(widest_out, out);
    for (const auto& [m, n, k] :
         {std::array{tokens, out, in}, std::array{tokens, in, out}, std::array{out, in, tokens}}) {
      workspace = std::max(workspace, scaled_gemm_workspace_bytes(kind, m, n, k));
    }
  }
  for (Index layer = 0; layer < config.num_layers; ++layer) {
    Block block;
    if (quantizes(precision, layer)) {
      block.codes = device(DType::u8, {bytes}, "fp8 weights/block." + std::to_string(layer));
      block.scales = device(DType::f32, {static_cast<Index>(kLinearKinds) * kScaleStride},
                            "fp8 weights/scales");
    }
    blocks_.push_back(std::move(block));
  }
  rows_ = device(DType::u8, {tokens * std::max(widest_in, widest_out)}, "fp8 operands/rows");
  input_ = device(DType::u8, {tokens * widest_in}, "fp8 operands/transposed inputs");
  gradient_ = device(DType::u8, {tokens * widest_out}, "fp8 operands/transposed gradients");
  constexpr auto kKinds = static_cast<Index>(kLinearKinds);
  input_max_ = device(DType::f32, {sets * config.num_layers * kKinds}, "fp8 operands/scales");
  gradient_max_ = device(DType::f32, {kKinds}, "fp8 operands/scales");
  weight_max_ = device(DType::f32, {1}, "fp8 operands/scales");
  scales_ = device(DType::f32, {kScales * kScaleStride}, "fp8 operands/scales");
  if (workspace > gemm_workspace_bytes(kind)) {
    workspace_ = device(DType::u8, {static_cast<Index>(workspace)}, "workspaces/fp8 gemm");
  }
  const Shape counts = {static_cast<Index>(QuantizeCounts{}.size())};
  counts_ = device(DType::i64, counts, "fp8 operands/counts");
  host_counts_ = arena.allocate(MemoryKind::pinned, DType::i64, counts, "fp8 operands/counts");
}

bool QuantizedBlocks::has(Index layer) const {
  return !blocks_.at(static_cast<std::size_t>(layer)).codes.empty();
}

TensorView QuantizedBlocks::workspace() {
  return workspace_.empty() ? TensorView{} : workspace_.view();
}

TensorView QuantizedBlocks::counts_of(LinearKind kind, OperandKind operand) {
  if (!counting_) {
    return {};
  }
  const Index row =
      static_cast<Index>(kind) * static_cast<Index>(kOperandKinds) + static_cast<Index>(operand);
  return counts_.view().slice(row * kQuantizeCounts, (row + 1) * kQuantizeCounts);
}

void QuantizedBlocks::refresh(Index layer, const std::array<ConstTensorView, kLinearKinds>& weights,
                              std::int64_t version, Stream& stream) {
  Block& block = blocks_.at(static_cast<std::size_t>(layer));
  if (block.version == version) {
    return;
  }
  block.version = version;
  for (const LinearKind kind : kLinearLayers) {
    const auto number = static_cast<std::size_t>(kind);
    const auto [in, out, offset] = layers_[number];
    const TensorView bytes = block.codes.view();
    const TensorView codes = bytes.slice(offset, offset + in * out);
    const TensorView transposed = bytes.slice(offset + in * out, offset + 2 * in * out);
    const auto at = static_cast<Index>(number);
    kernels_.abs_max({.x = weights[number], .out = weight_max_.view()}, stream);
    kernels_.quantize({.x = weights[number],
                       .abs_max = weight_max_.view(),
                       .codes = codes_in(codes, row_.inputs, {out, in}),
                       .transposed = codes_in(transposed, row_.inputs, {in, out}),
                       .scale = scale_at(block.scales, at),
                       .counts = counts_of(kind, OperandKind::weight)},
                      stream);
  }
}

WeightCodes QuantizedBlocks::weight(Index layer, LinearKind kind) {
  Block& block = blocks_.at(static_cast<std::size_t>(layer));
  TESSERA_REQUIRE(block.version >= 0, "weights that were quantised");
  const auto [in, out, offset] = layer_of(kind);
  const TensorView bytes = block.codes.view();
  const auto at = static_cast<Index>(kind);
  const TensorView scale = scale_at(block.scales, at);
  const auto operand = [&](Index begin, const Shape& shape) {
    return GemmOperand(codes_in(bytes.slice(begin, begin + in * out), row_.inputs, shape),
                       row_.scales, scale);
  };
  return {.codes = operand(offset, {out, in}), .transposed = operand(offset + in * out, {in, out})};
}

TensorView QuantizedBlocks::input_max(Index set, Index layer, LinearKind kind) {
  const auto layers = static_cast<Index>(blocks_.size());
  const Index at =
      (set * layers + layer) * static_cast<Index>(kLinearKinds) + static_cast<Index>(kind);
  return input_max_.view().slice(at, at + 1);
}

TensorView QuantizedBlocks::gradient_max(LinearKind kind) {
  const auto at = static_cast<Index>(kind);
  return gradient_max_.view().slice(at, at + 1);
}

void QuantizedBlocks::find_max(const ConstTensorView& x, const TensorView& max, Maximum state,
                               Stream& stream) const {
  if (state == Maximum::unknown) {
    kernels_.abs_max({.x = x, .out = max}, stream);
  }
}

GemmOperand QuantizedBlocks::quantize_input(const ConstTensorView& x, const TensorView& max,
                                            Maximum state, Stream& stream) {
  const TensorView codes = codes_in(rows_.view(), row_.inputs, x.shape);
  const TensorView scale = scale_at(scales_, kInputScale);
  find_max(x, max, state, stream);
  kernels_.quantize(
      {.x = x, .abs_max = max, .codes = codes, .transposed = {}, .scale = scale, .counts = {}},
      stream);
  return {codes, row_.scales, scale};
}

GemmOperand QuantizedBlocks::quantize_transposed_input(const ConstTensorView& x,
                                                       const TensorView& max, LinearKind kind,
                                                       Stream& stream) {
  const TensorView codes = codes_in(input_.view(), row_.inputs, {x.shape[1], x.shape[0]});
  const TensorView scale = scale_at(scales_, kInputScale);
  kernels_.quantize({.x = x,
                     .abs_max = max,
                     .codes = {},
                     .transposed = codes,
                     .scale = scale,
                     .counts = counts_of(kind, OperandKind::input)},
                    stream);
  return {codes, row_.scales, scale};
}

GemmOperand QuantizedBlocks::quantize_gradient(const ConstTensorView& d_y, const TensorView& max,
                                               Maximum state, LinearKind kind, Stream& stream) {
  const TensorView codes = codes_in(rows_.view(), row_.gradients, d_y.shape);
  const TensorView scale = scale_at(scales_, kGradientScale);
  find_max(d_y, max, state, stream);
  kernels_.quantize(
      {.x = d_y,
       .abs_max = max,
       .codes = codes,
       .transposed = codes_in(gradient_.view(), row_.gradients, {d_y.shape[1], d_y.shape[0]}),
       .scale = scale,
       .counts = counts_of(kind, OperandKind::gradient)},
      stream);
  return {codes, row_.scales, scale};
}

GemmOperand QuantizedBlocks::transposed_gradient(Index out) {
  return {codes_in(gradient_.view(), row_.gradients, {out, tokens_}), row_.scales,
          scale_at(scales_, kGradientScale)};
}

std::string quantized_size_refusal(const ModelConfig& config, const BatchShape& batch) {
  constexpr Index kMultiple = 16;
  struct Size {
    const char* name;
    Index value;
  };
  const std::array sizes = {
      Size{"tokens of a micro-batch, --micro-batch times --seq,", batch.tokens()},
      Size{"the hidden size", config.hidden_size},
      Size{"the width of queries, keys and values", config.qkv_width()},
      Size{"the width of queries", config.query_width()},
      Size{"the intermediate size", config.intermediate_size}};
  for (const Size& size : sizes) {
    if (size.value % kMultiple != 0) {
      return fmt::format("--precision fp8 on cuda needs multiples of {}, and {} {}: take "
                         "--precision bf16, or other sizes",
                         kMultiple, size.name,
                         (&size == sizes.data() ? "are " : "is ") + std::to_string(size.value));
    }
  }
  return {};
}

}  // namespace tessera
