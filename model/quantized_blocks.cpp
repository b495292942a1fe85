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

// Vectors are stored one behind the other, each beginning where kernels may read 16 bytes at a time.
Index aligned_elements(Index count) {
  constexpr Index kElements = 128;
  return (count + kElements - 1) / kElements * kElements;
}

// Of a block's norm gains and biases.
Index vector_elements(const ModelConfig& config) {
  Index elements = 0;
  const ParamLayout layout(config);
  for (const ParamTensor& tensor : layout.unit(1).tensors) {
    elements += tensor.shape.rank() == 1 ? aligned_elements(tensor.count()) : 0;
  }
  return elements;
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

const char* storage_name(CodeStorage storage) noexcept {
  switch (storage) {
    case CodeStorage::stored:
      return "stored";
    case CodeStorage::one_layout:
      return "one-layout";
    case CodeStorage::at_use:
      break;
  }
  return "at-use";
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
                                 const BatchShape& batch, const QuantizedOptions& options,
                                 Arena& arena)
    : kernels_(kernels),
      row_(row_of(options.precision.recipe)),
      tokens_(batch.tokens()),
      layers_{},
      storage_(options.storage),
      replaces_params_(options.replaces_params && options.storage != CodeStorage::at_use) {
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
    bytes += in * out;
    widest_in = std::max(widest_in, in);
    widest_out = std::max(widest_out, out);
    for (const auto& [m, n, k] :
         {std::array{tokens, out, in}, std::array{tokens, in, out}, std::array{out, in, tokens}}) {
      workspace = std::max(workspace, scaled_gemm_workspace_bytes(kind, m, n, k));
    }
  }
  constexpr auto kKinds = static_cast<Index>(kLinearKinds);
  const Index layouts = storage_ == CodeStorage::one_layout ? 1 : 2;
  const auto add_codes = [&](const std::string& name) {
    codes_.push_back({.bytes = device(DType::u8, {layouts * bytes}, "fp8 weights/" + name),
                      .scales = device(DType::f32, {kKinds * kScaleStride}, "fp8 weights/scales")});
    return codes_.size() - 1;
  };
  const Index vectors = replaces_params_ ? vector_elements(config) : 0;
  for (Index layer = 0; layer < config.num_layers; ++layer) {
    Block block;
    block.is_quantized = quantizes(options.precision, layer);
    if (block.is_quantized) {
      const bool shares = storage_ == CodeStorage::at_use && !codes_.empty();
      block.codes = shares ? 0 : add_codes("block." + std::to_string(layer));
      if (replaces_params_) {
        block.vectors = device(options.precision.params, {vectors}, "fp8 weights/vectors");
      }
    }
    blocks_.push_back(std::move(block));
  }
  if (layouts == 1 && !codes_.empty()) {
    transposed_ = device(DType::u8, {bytes}, "fp8 weights/transposed");
  }
  rows_ = device(DType::u8, {tokens * std::max(widest_in, widest_out)}, "fp8 operands/rows");
  input_ = device(DType::u8, {tokens * widest_in}, "fp8 operands/transposed inputs");
  gradient_ = device(DType::u8, {tokens * widest_out}, "fp8 operands/transposed gradients");
  const Index maxima = config.num_layers * kKinds;
  input_max_ = device(DType::f32, {options.sets * maxima}, "fp8 operands/scales");
  gradient_max_ = device(DType::f32, {options.gradient_sets * kKinds}, "fp8 operands/scales");
  weight_max_ = device(DType::f32, {maxima}, "fp8 operands/scales");
  scales_ = device(DType::f32, {kScales * kScaleStride}, "fp8 operands/scales");
  if (workspace > gemm_workspace_bytes(kind)) {
    workspace_ = device(DType::u8, {static_cast<Index>(workspace)}, "workspaces/fp8 gemm");
  }
  const Shape counts = {static_cast<Index>(QuantizeCounts{}.size())};
  counts_ = device(DType::i64, counts, "fp8 operands/counts");
  host_counts_ = arena.allocate(MemoryKind::pinned, DType::i64, counts, "fp8 operands/counts");
}

bool QuantizedBlocks::has(Index layer) const {
  return blocks_.at(static_cast<std::size_t>(layer)).is_quantized;
}

bool QuantizedBlocks::holds(Index layer, std::int64_t version) const {
  const Block& block = blocks_.at(static_cast<std::size_t>(layer));
  return replaces_params_ && block.is_quantized && block.version == version;
}

QuantizedBlocks::Codes& QuantizedBlocks::codes_of(Index layer) {
  const Block& block = blocks_.at(static_cast<std::size_t>(layer));
  TESSERA_REQUIRE(block.is_quantized, "a block that is quantised");
  return codes_[block.codes];
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

TensorView QuantizedBlocks::weight_max(Index layer, LinearKind kind) {
  const Index at = layer * static_cast<Index>(kLinearKinds) + static_cast<Index>(kind);
  return weight_max_.view().slice(at, at + 1);
}

TensorView QuantizedBlocks::place_of(Codes& codes, LinearKind kind, CodeUse layout) {
  const auto [in, out, offset] = layer_of(kind);
  const Layer& last = layers_.back();
  const bool is_forward = layout == CodeUse::forward;
  const bool is_second = !is_forward && transposed_.empty();
  const Index begin = offset + (is_second ? last.offset + last.in * last.out : 0);
  const TensorView bytes = is_forward || is_second ? codes.bytes.view() : transposed_.view();
  return codes_in(bytes.slice(begin, begin + in * out), row_.inputs,
                  is_forward ? Shape{out, in} : Shape{in, out});
}

void QuantizedBlocks::transpose(Index layer, Codes& codes, Stream& stream) {
  for (const LinearKind kind : kLinearLayers) {
    kernels_.quantize({.x = place_of(codes, kind, CodeUse::forward),
                       .abs_max = weight_max(layer, kind),
                       .codes = {},
                       .transposed = place_of(codes, kind, CodeUse::backward),
                       .scale = scale_at(codes.scales, static_cast<Index>(kind)),
                       .counts = {}},
                      stream);
  }
  transposed_layer_ = layer;
}

void QuantizedBlocks::complete(Index layer, CodeUse use, Stream& stream) {
  Codes& codes = codes_of(layer);
  TESSERA_REQUIRE(codes.layer == layer && codes.version >= 0, "weights that were quantised");
  if (storage_ == CodeStorage::one_layout && use != CodeUse::forward &&
      transposed_layer_ != layer) {
    transpose(layer, codes, stream);
  }
}

void QuantizedBlocks::refresh(Index layer, const std::array<ConstTensorView, kLinearKinds>& weights,
                              std::span<const ConstTensorView> vectors, std::int64_t version,
                              CodeUse use, Stream& stream) {
  Block& block = blocks_.at(static_cast<std::size_t>(layer));
  Codes& codes = codes_of(layer);
  const bool is_new = block.version != version;
  if (codes.layer != layer || codes.version != version) {
    codes.layer = layer;
    codes.version = version;
    codes.made = 0;
    transposed_layer_ = transposed_layer_ == layer ? -1 : transposed_layer_;
  }
  // Codes that stay are made at once in all layouts that do: the weights are read once.
  const CodeUse stays = storage_ == CodeStorage::one_layout ? CodeUse::forward : CodeUse::both;
  const auto wanted = static_cast<unsigned>(storage_ == CodeStorage::at_use ? use : stays);
  const unsigned missing = wanted & ~codes.made;
  codes.made |= wanted;
  for (const LinearKind kind : kLinearLayers) {
    const auto number = static_cast<std::size_t>(kind);
    const TensorView max = weight_max(layer, kind);
    const auto made = [&](CodeUse layout) {
      return (missing & static_cast<unsigned>(layout)) == 0 ? TensorView{}
                                                            : place_of(codes, kind, layout);
    };
    if (is_new) {
      kernels_.abs_max({.x = weights[number], .out = max}, stream);
    }
    if (missing != 0) {
      kernels_.quantize({.x = weights[number],
                         .abs_max = max,
                         .codes = made(CodeUse::forward),
                         .transposed = made(CodeUse::backward),
                         .scale = scale_at(codes.scales, static_cast<Index>(number)),
                         .counts = is_new ? counts_of(kind, OperandKind::weight) : TensorView{}},
                        stream);
    }
  }
  if (is_new && replaces_params_) {
    copy_vectors(block, vectors, stream);
  }
  block.version = version;
  complete(layer, use, stream);
}

void QuantizedBlocks::copy_vectors(Block& block, std::span<const ConstTensorView> vectors,
                                   Stream& stream) const {
  block.views.resize(vectors.size());
  Index at = 0;
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    if (vectors[i].data != nullptr) {
      const TensorView copy = block.vectors.view().slice(at, at + vectors[i].count());
      copy_async(vectors[i], copy, stream);
      block.views[i] = copy;
      at += aligned_elements(vectors[i].count());
    }
  }
}

ConstTensorView QuantizedBlocks::vector(Index layer, std::size_t i) const {
  return blocks_.at(static_cast<std::size_t>(layer)).views.at(i);
}

WeightCodes QuantizedBlocks::weight(Index layer, LinearKind kind) {
  Codes& codes = codes_of(layer);
  TESSERA_REQUIRE(codes.layer == layer && codes.version >= 0, "weights that were quantised");
  const TensorView scale = scale_at(codes.scales, static_cast<Index>(kind));
  const auto operand = [&](CodeUse layout) {
    return GemmOperand(place_of(codes, kind, layout), row_.scales, scale);
  };
  return {.codes = operand(CodeUse::forward), .transposed = operand(CodeUse::backward)};
}

TensorView QuantizedBlocks::input_max(Index set, Index layer, LinearKind kind) {
  const auto layers = static_cast<Index>(blocks_.size());
  const Index at =
      (set * layers + layer) * static_cast<Index>(kLinearKinds) + static_cast<Index>(kind);
  return input_max_.view().slice(at, at + 1);
}

TensorView QuantizedBlocks::gradient_max(Index set, LinearKind kind) {
  const Index at = set * static_cast<Index>(kLinearKinds) + static_cast<Index>(kind);
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
