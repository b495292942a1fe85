// The adapters beside one linear layer y = x W^T of a frozen model (adapter_config.h), as its GEMMs:
//
//   forward           h = x A^T       y   = s h B^T     and the layer's GEMM adds to it
//   input gradient    d_h = s d_y B   d_x = d_h A       likewise
//   weight gradients  dB = s d_y^T h  dA   = d_h^T x
//
// A layer that is several of Hugging Face's (q, k, v; gate, up) has an adapter for each part of its
// rows that has one; their A are one matrix.
//
// h is kept between the passes where the block keeps all (Recompute::none), and written again where
// the backward pass computes y again. Then d_h and dB come from one reading of d_y. Else h is computed
// from x, which is there again only when d_x is done.
#pragma once

#include <array>
#include <string_view>

#include "kernels/kernel_table.h"
#include "model/adapter_layout.h"
#include "model/quantized_blocks.h"
#include "model/recompute.h"

namespace tessera {

/// What the adapters of a block pass through, of N tokens.
struct AdapterWork {
  TensorView hidden;    // [N, AdapterLayout::block_width]: h of the layers, one behind the other
  TensorView d_hidden;  // [N, AdapterLayout::widest], overwritten by each layer; data null where
                        // there is no backward pass
  Recompute dropped = Recompute::none;  // what of the block the backward pass computes again
};

struct LinearAdapter {
  struct Part {
    ConstTensorView b;  // [rows, r]
    TensorView d_b;     // written by the backward pass; data null elsewhere
    Index first_row = 0;
    Index rows = 0;
  };
  static constexpr std::size_t kMostParts = 3;

  std::array<Part, kMostParts> parts;
  std::size_t count = 0;  // 0: there is none beside this layer
  ConstTensorView a;      // [count * r, in]
  TensorView d_a;         // as d_b
  Index rank = 0;
  float scale = 0;
  TensorView hidden;        // [N, width()]
  TensorView d_hidden;      // as AdapterWork's
  bool has_hidden = false;  // `hidden` is h when backward_input is called

  [[nodiscard]] Index width() const noexcept { return static_cast<Index>(count) * rank; }
  /// Whether every row of the layer, of `out`, has an adapter.
  [[nodiscard]] bool covers(Index out) const noexcept;
};

/// Those of one block, by kind of its linear layers.
struct BlockAdapters {
  std::array<LinearAdapter, kLinearKinds> linear;
  [[nodiscard]] const LinearAdapter& of(LinearKind kind) const {
    return linear.at(static_cast<std::size_t>(kind));
  }
};

/// Whether the backward pass finds h of the layer `fused` ("attention.qkv") of a block of which it
/// computes `dropped` again.
[[nodiscard]] bool finds_hidden(std::string_view fused, Recompute dropped);

/// The adapters of block `layer` within `params`, and their gradients within `grads`, both laid out as
/// the block's unit of `layout`; data of `grads` null: forward alone.
[[nodiscard]] BlockAdapters block_adapters(const ModelConfig& config, const AdapterLayout& layout,
                                           Index layer, const ConstTensorView& params,
                                           const TensorView& grads, const AdapterWork& work);

/// Sizes of the layer, and where its GEMMs may work.
struct AdapterGemms {
  const KernelTable& kernels;
  Index rows;  // N
  Index in;
  Index out;
  TensorView workspace;

  /// y [N, out] = added + s (x A^T) B^T in the columns of rows that have an adapter. `added`: [N, out],
  /// y itself, or data null for none.
  void forward(const LinearAdapter& adapter, const ConstTensorView& x, const ConstTensorView& added,
               const TensorView& y, Stream& stream) const;
  /// d_x [N, in] = (s d_y B) A, data null: not needed; leaves s d_y B in d_hidden for backward_weight,
  /// and writes dB where it can.
  void backward_input(const LinearAdapter& adapter, const ConstTensorView& d_y,
                      const TensorView& d_x, Stream& stream) const;
  /// Requires: backward_input was called before with this d_y, and of no other layer since.
  void backward_weight(const LinearAdapter& adapter, const ConstTensorView& d_y,
                       const ConstTensorView& x, Stream& stream) const;

 private:
  void backward_parts(const LinearAdapter& adapter, const ConstTensorView& d_y,
                      AdapterGradients needed, Stream& stream) const;
  void reduce(const LinearAdapter& adapter, const ConstTensorView& x, Stream& stream) const;
};

}  // namespace tessera
