// Everything that a step reuses, owned once for the run: activations, the logits chunk, the batch
// on the device, the step's sums. Its contents are overwritten, its memory is kept, nothing of it
// is in a checkpoint; training, evaluation and generation use the same object.
#pragma once

#include <optional>

#include "kernels/kernel_table.h"
#include "kernels/precision.h"
#include "model/decoder.h"
#include "model/transformer.h"

namespace tessera {

struct ScratchOptions {
  BatchShape batch;
  PrecisionPolicy precision;
  RecomputeLevels recompute;
  Index together = 1;           // micro-batches whose block inputs are kept at the same time
  Index backward_together = 1;  // those whose backward passes run side by side
  CodeStorage fp8_weights = CodeStorage::stored;
  bool gathers_params = false;  // blocks come ahead of use: codes of 8 bits may take their place
  InputPlacement inputs = InputPlacement::device;  // where those are kept
  AttentionOptions attention;
  std::size_t logits_bytes = std::size_t{128} << 20U;
  LossOptions loss;
  bool decodes = false;                     // a Decoder works in it too
  const AdapterLayout* adapters = nullptr;  // null: there are none
};

class TrainingScratch {
 public:
  TrainingScratch(const KernelTable& kernels, const ModelConfig& config,
                  const ScratchOptions& options, Arena& arena);

  [[nodiscard]] Activations& activations() noexcept { return activations_; }
  [[nodiscard]] FusedLinearCrossEntropy& loss() noexcept { return loss_; }
  /// AdapterWork::d_hidden; data null without adapters.
  [[nodiscard]] TensorView adapter_gradients() { return d_adapters_.view(); }
  /// Null where the precision does not quantise.
  [[nodiscard]] QuantizedBlocks* quantized() noexcept {
    return quantized_ ? &*quantized_ : nullptr;
  }

  /// For a Decoder, in buffers that steps use too; only a batch of few tokens, or a small chunk of
  /// logits, has too little room, and then more is allocated. Requires: `decodes`.
  [[nodiscard]] const DecoderWork& decoder_work() const noexcept { return decoder_work_; }
  /// Bytes of it that steps use too.
  [[nodiscard]] std::size_t decoder_lent_bytes() const noexcept { return lent_bytes_; }

  // On the device, N = B * T:
  [[nodiscard]] TensorView inputs() { return inputs_.view(); }            // [N] i32
  [[nodiscard]] TensorView targets() { return targets_.view(); }          // [N] i32
  [[nodiscard]] TensorView token_order() { return token_order_.view(); }  // [N] i32
  /// Where documents begin in micro-batch `set` of those that run together, [N + 1] i32, and their
  /// positions, [N] i32. Requires: the batches have documents (AttentionOptions).
  [[nodiscard]] TensorView document_begins(Index set);
  [[nodiscard]] TensorView positions(Index set);
  [[nodiscard]] TensorView losses() { return losses_.view(); }          // [N] f32
  [[nodiscard]] TensorView correct() { return correct_.view(); }        // [N] u8, evaluation's
  [[nodiscard]] TensorView scale() { return scale_.view(); }            // [1] f32
  [[nodiscard]] TensorView loss_words() { return loss_words_.view(); }  // [kFixedPointWords] i64
  // In pinned host memory, where the host reads and writes:
  [[nodiscard]] TensorView host_scale() { return host_scale_.view(); }      // [1] f32
  [[nodiscard]] TensorView host_correct() { return host_correct_.view(); }  // [2, N] u8
  [[nodiscard]] TensorView host_norm_words() { return host_norm_words_.view(); }
  [[nodiscard]] TensorView host_loss_words() { return host_loss_words_.view(); }

 private:
  [[nodiscard]] DecoderWork make_decoder_work(const ModelConfig& config, DType dtype, Arena& arena);
  [[nodiscard]] TensorView lend(const TensorView& buffer, DType dtype, const Shape& shape,
                                Arena& arena);

  Activations activations_;
  FusedLinearCrossEntropy loss_;
  std::optional<QuantizedBlocks> quantized_;
  DeviceBuffer d_adapters_;
  DeviceBuffer inputs_;
  DeviceBuffer targets_;
  DeviceBuffer token_order_;
  DeviceBuffer documents_;  // [together, 2 N + 1]: begins, positions
  DeviceBuffer losses_;
  DeviceBuffer correct_;
  DeviceBuffer scale_;
  DeviceBuffer loss_words_;
  DeviceBuffer host_scale_;
  DeviceBuffer host_correct_;
  DeviceBuffer host_norm_words_;
  DeviceBuffer host_loss_words_;
  std::vector<DeviceBuffer> decoder_own_;
  std::size_t lent_bytes_ = 0;
  DecoderWork decoder_work_;
};

}  // namespace tessera
