#include "model/linear_adapter.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace tessera {
namespace {

// The columns of a matrix from `first` on, whose rows stay as far apart as they are.
template <typename View>
View columns_from(const View& matrix, Index first) {
  return matrix.slice(first, matrix.count());
}

template <typename View>
View tensor_of(const ParamTensor& tensor, const View& storage) {
  return storage.slice(tensor.offset, tensor.offset + tensor.count()).reshaped(tensor.shape);
}

constexpr std::array<std::string_view, kLinearKinds> kFused = {"attention.qkv", "attention.out",
                                                               "mlp.gate_up", "mlp.down"};

}  // namespace

bool finds_hidden(std::string_view fused, Recompute dropped) {
  const auto* const found = std::ranges::find(kFused, fused);
  TESSERA_REQUIRE(found != kFused.end(), "a linear layer");
  switch (static_cast<LinearKind>(found - kFused.begin())) {
    case LinearKind::qkv:
      return dropped == Recompute::none || drops_attention(dropped);
    case LinearKind::out:
      return dropped == Recompute::none || drops_middle(dropped);
    case LinearKind::gate_up:
      return dropped == Recompute::none || drops_mlp(dropped);
    case LinearKind::down:
      break;
  }
  return dropped == Recompute::none;
}

BlockAdapters block_adapters(const ModelConfig& config, const AdapterLayout& layout, Index layer,
                             const ConstTensorView& params, const TensorView& grads,
                             const AdapterWork& work) {
  const ParamUnit& unit = layout.params().unit(layout.block(layer));
  const AdapterConfig& adapters = layout.config();
  BlockAdapters all;
  Index begin = 0;                     // of a layer's h
  auto tensor = unit.tensors.begin();  // A of a layer's parts, then their B: the order of the unit
  for (std::size_t kind = 0; kind < kLinearKinds; ++kind) {
    LinearAdapter& linear = all.linear.at(kind);
    const auto first_a = tensor;
    for (const Projection target : adapters.targets) {
      if (row_of(target).fused == kFused.at(kind)) {
        const ProjectionSizes sizes = projection_sizes(config, target);
        linear.parts.at(linear.count++) = {{}, {}, sizes.first_row, sizes.out};
        ++tensor;
      }
    }
    if (linear.count == 0) {
      continue;
    }
    linear.rank = adapters.rank;
    linear.scale = static_cast<float>(adapters.scale());
    const Index tokens = work.hidden.shape[0];
    linear.hidden = work.hidden.slice(begin, begin + tokens * linear.width())
                        .reshaped({tokens, linear.width()});
    linear.d_hidden = work.d_hidden;
    linear.has_hidden = finds_hidden(kFused.at(kind), work.dropped);
    begin += tokens * linear.width();
    const Shape shape = {linear.width(), first_a->shape[1]};
    const Index end = first_a->offset + shape.count();
    linear.a = params.slice(first_a->offset, end).reshaped(shape);
    if (grads.data != nullptr) {
      linear.d_a = grads.slice(first_a->offset, end).reshaped(shape);
    }
    for (std::size_t part = 0; part < linear.count; ++part, ++tensor) {
      linear.parts.at(part).b = tensor_of(*tensor, params);
      if (grads.data != nullptr) {
        linear.parts.at(part).d_b = tensor_of(*tensor, grads);
      }
    }
  }
  return all;
}

bool LinearAdapter::covers(Index out) const noexcept {
  Index rows = 0;
  for (std::size_t i = 0; i < count; ++i) {
    rows += parts.at(i).rows;
  }
  return rows == out;
}

// h = x A^T, of all parts at once
void AdapterGemms::reduce(const LinearAdapter& adapter, const ConstTensorView& x,
                          Stream& stream) const {
  kernels.gemm({.m = rows,
                .n = adapter.width(),
                .k = in,
                .transpose_a = Transpose::no,
                .transpose_b = Transpose::yes,
                .a = x,
                .lda = in,
                .b = adapter.a,
                .ldb = in,
                .beta = 0.0F,
                .c = {},
                .bias = {},
                .d = adapter.hidden,
                .ldd = adapter.width(),
                .workspace = workspace},
               stream);
}

void AdapterGemms::forward(const LinearAdapter& adapter, const ConstTensorView& x,
                           const ConstTensorView& added, const TensorView& y,
                           Stream& stream) const {
  reduce(adapter, x, stream);
  for (std::size_t i = 0; i < adapter.count; ++i) {
    const LinearAdapter::Part& part = adapter.parts.at(i);
    const TensorView hidden = columns_from(adapter.hidden, static_cast<Index>(i) * adapter.rank);
    kernels.gemm(
        {.m = rows,
         .n = part.rows,
         .k = adapter.rank,
         .transpose_a = Transpose::no,
         .transpose_b = Transpose::yes,
         .a = hidden,
         .lda = adapter.width(),
         .b = part.b,
         .ldb = adapter.rank,
         .beta = added.data == nullptr ? 0.0F : 1.0F,
         .c = added.data == nullptr ? ConstTensorView{} : columns_from(added, part.first_row),
         .bias = {},
         .d = columns_from(y, part.first_row),
         .ldd = out,
         .workspace = workspace,
         .alpha = adapter.scale},
        stream);
  }
}

// s d_y B, and s d_y^T h
void AdapterGemms::backward_parts(const LinearAdapter& adapter, const ConstTensorView& d_y,
                                  AdapterGradients needed, Stream& stream) const {
  for (std::size_t i = 0; i < adapter.count; ++i) {
    const LinearAdapter::Part& part = adapter.parts.at(i);
    const Index column = static_cast<Index>(i) * adapter.rank;
    kernels.adapter_gradients({.tokens = rows,
                               .out = part.rows,
                               .rank = adapter.rank,
                               .d_y = columns_from(d_y, part.first_row),
                               .ld_y = out,
                               .b = part.b,
                               .hidden = columns_from(adapter.hidden, column),
                               .d_hidden = columns_from(adapter.d_hidden, column),
                               .ld_hidden = adapter.width(),
                               .d_b = part.d_b,
                               .workspace = workspace,
                               .scale = adapter.scale,
                               .needed = needed},
                              stream);
  }
}

void AdapterGemms::backward_input(const LinearAdapter& adapter, const ConstTensorView& d_y,
                                  const TensorView& d_x, Stream& stream) const {
  backward_parts(adapter, d_y,
                 adapter.has_hidden ? AdapterGradients::both : AdapterGradients::hidden, stream);
  if (d_x.data == nullptr) {
    return;
  }
  kernels.gemm({.m = rows,
                .n = in,
                .k = adapter.width(),
                .transpose_a = Transpose::no,
                .transpose_b = Transpose::no,
                .a = adapter.d_hidden,
                .lda = adapter.width(),
                .b = adapter.a,
                .ldb = in,
                .beta = 0.0F,
                .c = {},
                .bias = {},
                .d = d_x,
                .ldd = in,
                .workspace = workspace},
               stream);
}

void AdapterGemms::backward_weight(const LinearAdapter& adapter, const ConstTensorView& d_y,
                                   const ConstTensorView& x, Stream& stream) const {
  if (!adapter.has_hidden) {
    reduce(adapter, x, stream);
    backward_parts(adapter, d_y, AdapterGradients::b, stream);
  }
  kernels.gemm({.m = adapter.width(),
                .n = in,
                .k = rows,
                .transpose_a = Transpose::yes,
                .transpose_b = Transpose::no,
                .a = adapter.d_hidden,
                .lda = adapter.width(),
                .b = x,
                .ldb = in,
                .beta = 0.0F,
                .c = {},
                .bias = {},
                .d = adapter.d_a,
                .ldd = in,
                .workspace = workspace},
               stream);
}

}  // namespace tessera
