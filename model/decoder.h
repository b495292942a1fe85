// The network token by token: keys and values of the tokens so far are kept, so that one more token
// costs one pass over the weights.
//
// Tokens go through in tiles of kTile rows at multiples of kTile, all rows of which are computed
// each time, those of tokens to come with id 0. A token's row thus always is at the same place of
// GEMMs of the same shape, where a matrix library gives bit-identical results; and attention over
// the kept keys gives each row its own order of sums. Hence the logits are bit-identical whether
// tokens came one by one or many at once. (GEMMs of one row would not: libraries take other
// kernels for them. A tile costs no more: reading the weights takes the time.)
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device/arena.h"
#include "kernels/kernel_table.h"
#include "model/model_config.h"
#include "model/param_gate.h"
#include "model/param_layout.h"
#include "model/transformer_block.h"

namespace tessera {

/// What a tile of R = Decoder::kTile rows passes through. Whoever trains or generates lends it:
/// every call overwrites it, and reads nothing that an earlier one left.
struct DecoderWork {
  TensorView tokens;       // [R] i32
  TensorView hidden;       // [R, C]
  TensorView middle;       // [R, C]
  TensorView normed;       // [R, C]
  TensorView qkv;          // [R, (Hq + 2 Hkv) D]
  TensorView attended;     // [R, Hq D]
  TensorView gate_up;      // [R, 2 F]
  TensorView product;      // [R, F]
  TensorView logits;       // [R, logits_stride(V, f32)] f32
  TensorView gemm;         // u8, as in kernels/gemm.h
  TensorView host_logits;  // [V] f32, pinned
  TensorView adapters;     // [R, AdapterLayout::block_width]; data null without adapters
};

/// Owns what belongs to the text that it writes: its tokens, their keys and values, and the rotary
/// tables.
class Decoder {
 public:
  static constexpr Index kTile = 16;

  /// Keeps references to `kernels`, `config`, `layout` and `adapters` (null: there are none); `work`
  /// outlives it. Room for `capacity` tokens in all.
  Decoder(const KernelTable& kernels, const ModelConfig& config, const ParamLayout& layout,
          Index capacity, DType dtype, const DecoderWork& work, Arena& arena,
          const AdapterLayout* adapters = nullptr);

  /// Appends `tokens` and returns the logits after the last of them, [V], valid until the next
  /// call, or other use of the work buffers. Waits for `stream`. Requires: one token or more, each
  /// in [0, V), and room for them.
  [[nodiscard]] std::span<const float> append(std::span<const std::int32_t> tokens,
                                              const ModelParams& params, Stream& stream);
  /// The next token is the first.
  void forget() noexcept { length_ = 0; }
  [[nodiscard]] Index length() const noexcept { return length_; }
  [[nodiscard]] Index capacity() const noexcept { return capacity_; }

 private:
  void run_tile(Index tile, const ModelParams& params, Stream& stream);
  void run_block(Index layer, Index position, const BlockTensors<ConstTensorView>& params,
                 const BlockAdapters& adapters, Stream& stream);
  void run_head(const ModelParams& params, Stream& stream);
  [[nodiscard]] ParamLease acquire_embedding(const ModelParams& params, Stream& stream) const;

  const KernelTable& kernels_;
  const ModelConfig& config_;
  const ParamLayout& layout_;
  const AdapterLayout* adapters_;
  Index capacity_;  // a multiple of kTile
  Index length_ = 0;
  DecoderWork work_;
  DeviceBuffer host_tokens_;         // [capacity] i32, pinned
  DeviceBuffer cos_;                 // [capacity, D/2] f32
  DeviceBuffer sin_;                 // [capacity, D/2] f32
  std::vector<DeviceBuffer> cache_;  // a block: [capacity, 2 Hkv D]
};

}  // namespace tessera
