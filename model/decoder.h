// The network token by token: keys and values of the tokens so far are kept, so that one more token
// costs one pass over the weights.
//
// Tokens go through in tiles of kTile rows at multiples of kTile, all rows of which are computed
// each time, those of tokens to come with id 0. A token's row thus always is at the same place of
// GEMMs of the same shape, where a matrix library gives bit-identical results; and attention over
// the kept keys gives each row its own order of sums. Hence the logits are bit-identical whether
// tokens came one by one or many at once. (GEMMs of one row would not: libraries take other
// kernels for them. A tile costs no more: reading the weights takes the time.)
//
// Several texts go through side by side, a tile of each: the parameters of a unit are acquired once
// for all of them, which is what takes the time where they are gathered or come from the host. Each
// text's tiles are computed as they would be without the others, and so are its bits.
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

/// Owns what belongs to the texts that it writes: their tokens, the keys and values of these, and
/// the rotary tables; of all texts but the first their rows between blocks and their logits too.
class Decoder {
 public:
  static constexpr Index kTile = 16;

  /// Keeps references to `kernels`, `config`, `layout` and `adapters` (null: there are none); `work`
  /// outlives it. Room for `capacity` tokens of each of `texts` texts.
  Decoder(const KernelTable& kernels, const ModelConfig& config, const ParamLayout& layout,
          Index capacity, DType dtype, const DecoderWork& work, Arena& arena,
          const AdapterLayout* adapters = nullptr, Index texts = 1);

  /// Appends `tokens[i]` to text i; where they are empty that text stays as it is. Passes over the
  /// parameters: as many as the text with the most tiles takes. Waits for `stream`. Requires: tokens
  /// of one text or more, each in [0, V), and room for them; as many spans as texts.
  void append(std::span<const std::span<const std::int32_t>> tokens, const ModelParams& params,
              Stream& stream);
  /// The logits after the last token of `text`, [V], where the last `append` gave it any; valid
  /// until the next call, or other use of the work buffers.
  [[nodiscard]] std::span<const float> logits(Index text) const;
  /// The same of the only text. Requires: there is one.
  [[nodiscard]] std::span<const float> append(std::span<const std::int32_t> tokens,
                                              const ModelParams& params, Stream& stream);
  /// The next token of each text is its first.
  void forget() noexcept;
  [[nodiscard]] Index texts() const noexcept { return std::ssize(texts_); }
  [[nodiscard]] Index length(Index text = 0) const { return of(text).length; }
  [[nodiscard]] Index capacity() const noexcept { return capacity_; }

 private:
  struct Text {
    DeviceBuffer host_tokens;           // [capacity] i32, pinned
    std::vector<DeviceBuffer> cache;    // a block: [capacity, 2 Hkv D]
    std::vector<DeviceBuffer> storage;  // of the views, where they are not of the work buffers
    TensorView hidden;                  // [R, C], between the blocks of a pass
    TensorView host_logits;             // [V] f32, pinned
    Index length = 0;
  };
  // A text that takes part in a pass, and its tile there.
  struct Part {
    Text* text;
    Index tile;
  };
  [[nodiscard]] Text make_text(DType dtype, bool is_first, Arena& arena) const;
  [[nodiscard]] const Text& of(Index text) const {
    return texts_.at(static_cast<std::size_t>(text));
  }
  void take(Text& text, std::span<const std::int32_t> tokens) const;
  void run_pass(std::span<const Part> parts, const ModelParams& params, Stream& stream);
  void run_block(const Part& part, Index layer, const BlockTensors<ConstTensorView>& params,
                 const BlockAdapters& adapters, Stream& stream);
  void run_head(std::span<const Part> last, const ModelParams& params, Stream& stream);
  [[nodiscard]] ParamLease acquire_embedding(const ModelParams& params, Stream& stream) const;

  const KernelTable& kernels_;
  const ModelConfig& config_;
  const ParamLayout& layout_;
  const AdapterLayout* adapters_;
  Index capacity_;  // a multiple of kTile
  DecoderWork work_;
  DeviceBuffer cos_;  // [capacity, D/2] f32
  DeviceBuffer sin_;  // [capacity, D/2] f32
  std::vector<Text> texts_;
  std::vector<Part> longer_;  // texts that an append makes longer, from this tile on
  std::vector<Part> parts_;   // of one of its passes
};

}  // namespace tessera
