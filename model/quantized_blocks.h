// What the blocks' GEMMs of 8 bits need beside the activations: the weights' codes, quantised once
// after each update or anew for each pass, and room for the codes of the operands that a micro-batch
// passes through.
//
// Of a layer y = x W^T, with N tokens, all operands along their GEMM's k:
//
//   forward          y   = x  [N, in]    (W [out, in])^T
//   input gradient   d_x = d_y [N, out]  (W^T [in, out])^T
//   weight gradient  d_W = d_y^T [out, N] (x^T [in, N])^T
//
// x is quantised for each of its two GEMMs from the same numbers, with the same scale, so that no
// codes of it are kept between the passes, at any recompute level; d_y once in both layouts. A scale
// is that of the micro-batch's whole tensor, padding included.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "kernels/device/arena.h"
#include "kernels/kernel_table.h"
#include "kernels/precision.h"
#include "model/activations.h"
#include "model/param_layout.h"

namespace tessera {

/// The linear layers of a block.
enum class LinearKind : std::uint8_t { qkv, out, gate_up, down };
inline constexpr std::array kLinearLayers = {LinearKind::qkv, LinearKind::out, LinearKind::gate_up,
                                             LinearKind::down};
inline constexpr std::size_t kLinearKinds = kLinearLayers.size();
[[nodiscard]] const char* linear_name(LinearKind kind) noexcept;
struct LinearSizes {
  Index in;
  Index out;
};
[[nodiscard]] LinearSizes linear_sizes(const ModelConfig& config, LinearKind kind);

/// A weight as codes of one scale.
struct WeightCodes {
  GemmOperand codes;       // [out, in]
  GemmOperand transposed;  // [in, out]
};

/// Where codes of weights are: those of all blocks, so that what they were made from need not be
/// there, in both layouts (`stored`) or in the forward pass's alone, which backward passes transpose,
/// one block at a time (`one_layout`); or of one block at a time, quantised anew by each pass from
/// the largest magnitudes that the first found (`at_use`). Bit-identical.
enum class CodeStorage : std::uint8_t { stored, one_layout, at_use };
/// As --fp8-weights has it.
[[nodiscard]] const char* storage_name(CodeStorage storage) noexcept;

/// What a pass through a block multiplies by: a weight as it is, its transpose, or both.
enum class CodeUse : std::uint8_t { forward = 1, backward = 2, both = 3 };

struct QuantizedOptions {
  PrecisionPolicy precision;
  Index sets = 1;           // micro-batches whose forward passes run side by side (Activations)
  Index gradient_sets = 1;  // those whose backward passes do
  CodeStorage storage = CodeStorage::stored;
  /// Blocks whose codes are stored need no lease on their parameters (holds): copies of norm gains
  /// and biases are kept too. For parameters that come from elsewhere.
  bool replaces_params = false;
};

/// Whether the kernel that wrote a tensor has found its largest magnitude on the way.
enum class Maximum : std::uint8_t { known, unknown };

/// Which operand of a layer is counted.
enum class OperandKind : std::uint8_t { input, weight, gradient };
inline constexpr std::size_t kOperandKinds = 3;

/// What is counted of values that are quantised, by layer and operand, as in QuantizeCount.
using QuantizeCounts =
    std::array<std::int64_t,
               kLinearKinds * kOperandKinds* static_cast<std::size_t>(kQuantizeCounts)>;

[[nodiscard]] inline std::int64_t quantize_count(const QuantizeCounts& counts, LinearKind kind,
                                                 OperandKind operand, QuantizeCount what) {
  const auto row =
      static_cast<std::size_t>(kind) * kOperandKinds + static_cast<std::size_t>(operand);
  return counts.at(row * static_cast<std::size_t>(kQuantizeCounts) +
                   static_cast<std::size_t>(what));
}

class QuantizedBlocks {
 public:
  /// Keeps a reference to `kernels`. Requires: a recipe that quantises, and that there is
  /// (require_supported).
  QuantizedBlocks(const KernelTable& kernels, const ModelConfig& config, const BatchShape& batch,
                  const QuantizedOptions& options, Arena& arena);

  /// Whether block `layer` is quantised.
  [[nodiscard]] bool has(Index layer) const;
  /// Whether blocks whose codes are there need no lease on their parameters.
  [[nodiscard]] bool replaces_params() const noexcept { return replaces_params_; }
  /// Whether all that passes through block `layer` need of `version` of its parameters is here.
  [[nodiscard]] bool holds(Index layer, std::int64_t version) const;
  /// Quantises the weights of block `layer` for `use`, but for codes that are there of this
  /// `version` of them (see ParamLease), and copies its vectors where those are kept.
  /// Requires: has(layer).
  ///   weights  [out, in] each, in the order of LinearKind
  ///   vectors  the block's norm gains and biases: always the same ones, data null or with sizes that
  ///            do not change
  void refresh(Index layer, const std::array<ConstTensorView, kLinearKinds>& weights,
               std::span<const ConstTensorView> vectors, std::int64_t version, CodeUse use,
               Stream& stream);
  /// Makes the layouts that `use` needs and that are not stored, for a block that needs no lease.
  /// Requires: holds(layer) of some version.
  void complete(Index layer, CodeUse use, Stream& stream);
  /// Until codes of another block are made, where they are not stored.
  /// Requires: they were refreshed; codes of a layout that was not are not to be read.
  [[nodiscard]] WeightCodes weight(Index layer, LinearKind kind);
  /// Copy number `i` of the vectors that refresh was given. Requires: holds(layer) of some version.
  [[nodiscard]] ConstTensorView vector(Index layer, std::size_t i) const;

  /// [1] f32: max |x| of the input of a layer, from the forward pass of a set's micro-batch to its
  /// backward pass; and max |d_y| of a gradient, from one kernel to the next.
  [[nodiscard]] TensorView input_max(Index set, Index layer, LinearKind kind);
  [[nodiscard]] TensorView gradient_max(Index set, LinearKind kind);

  /// x [N, in] as codes [N, in] until the next call of this or of quantize_gradient. `max` is read,
  /// and found first where it is not known.
  [[nodiscard]] GemmOperand quantize_input(const ConstTensorView& x, const TensorView& max,
                                           Maximum state, Stream& stream);
  /// x [N, in] as codes [in, N] until the next call. `max` is read. Counted as `kind`'s input.
  [[nodiscard]] GemmOperand quantize_transposed_input(const ConstTensorView& x,
                                                      const TensorView& max, LinearKind kind,
                                                      Stream& stream);
  /// d_y [N, out] as codes [N, out], until quantize_input is called; and as codes [out, N] for
  /// `transposed_gradient`, until the next call. `max` as above. Counted as `kind`'s gradient.
  [[nodiscard]] GemmOperand quantize_gradient(const ConstTensorView& d_y, const TensorView& max,
                                              Maximum state, LinearKind kind, Stream& stream);
  /// [out, N] of the last quantize_gradient. Requires: one of N x `out` elements.
  [[nodiscard]] GemmOperand transposed_gradient(Index out);

  /// How forward GEMMs add; those of the backward pass add in full f32.
  [[nodiscard]] Accumulation forward_accumulation() const noexcept { return row_.forward; }
  /// u8, of scaled GEMMs where they need more than others; else data null.
  [[nodiscard]] TensorView workspace();

  /// Whether values are counted from now on; at first they are not.
  void set_counting(bool on) noexcept { counting_ = on; }
  [[nodiscard]] bool is_counting() const noexcept { return counting_; }
  /// [QuantizeCounts] i64, added to by what is queued while counting is on.
  [[nodiscard]] TensorView counts() { return counts_.view(); }
  /// Where its copy may go: pinned.
  [[nodiscard]] TensorView host_counts() { return host_counts_.view(); }

 private:
  struct Codes {
    DeviceBuffer bytes;  // u8: of each weight [out, in], then [in, out] unless those are shared
    DeviceBuffer scales;
    Index layer = -1;
    std::int64_t version = -1;
    unsigned made = 0;  // CodeUse of it
  };
  struct Block {
    std::size_t codes = 0;  // which are its own, or shared
    bool is_quantized = false;
    std::int64_t version = -1;  // of which maxima, and copies of vectors, are there
    DeviceBuffer vectors;       // one behind the other
    std::vector<ConstTensorView> views;
  };
  struct Layer {
    Index in;
    Index out;
    Index offset;  // of its codes in a layout of a block's weights, in bytes
  };
  [[nodiscard]] const Layer& layer_of(LinearKind kind) const {
    return layers_[static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] Codes& codes_of(Index layer);
  /// Of a layer's weight, in that one of the two layouts.
  [[nodiscard]] TensorView place_of(Codes& codes, LinearKind kind, CodeUse layout);
  void transpose(Index layer, Codes& codes, Stream& stream);
  [[nodiscard]] TensorView weight_max(Index layer, LinearKind kind);
  void copy_vectors(Block& block, std::span<const ConstTensorView> vectors, Stream& stream) const;
  void find_max(const ConstTensorView& x, const TensorView& max, Maximum state,
                Stream& stream) const;
  [[nodiscard]] TensorView counts_of(LinearKind kind, OperandKind operand);

  const KernelTable& kernels_;
  const RecipeRow& row_;
  Index tokens_;
  std::array<Layer, kLinearKinds> layers_;
  CodeStorage storage_;
  bool replaces_params_;
  std::vector<Codes> codes_;
  // Of one block at a time: each weight [in, out] where each block stores [out, in] alone.
  DeviceBuffer transposed_;
  Index transposed_layer_ = -1;
  std::vector<Block> blocks_;
  DeviceBuffer rows_;          // u8, N times the widest of in and out
  DeviceBuffer input_;         // u8, [in, N]
  DeviceBuffer gradient_;      // u8, [out, N]
  DeviceBuffer input_max_;     // f32, [sets, layers, kLinearKinds]
  DeviceBuffer gradient_max_;  // f32, [gradient sets, kLinearKinds]
  DeviceBuffer weight_max_;    // f32, [layers, kLinearKinds]
  DeviceBuffer scales_;        // f32: of the input, of the gradient
  DeviceBuffer workspace_;
  DeviceBuffer counts_;
  DeviceBuffer host_counts_;
  bool counting_ = false;
};

/// Why the GEMMs of these sizes cannot be quantised on CUDA, with the number that is not a multiple
/// of 16; empty if they can.
[[nodiscard]] std::string quantized_size_refusal(const ModelConfig& config,
                                                 const BatchShape& batch);

}  // namespace tessera
