#include "runtime/run/training_scratch.h"

#include "kernels/base/fixed_point.h"

namespace tessera {

TrainingScratch::TrainingScratch(const KernelTable& kernels, const ModelConfig& config,
                                 const ScratchOptions& options, Arena& arena)
    : activations_(config, options.batch, options.precision.activations, options.recompute,
                   options.together, options.attention, arena),
      loss_(kernels, arena, options.precision.activations, config.vocab_size, config.hidden_size,
            chunk_rows_for(options.batch.tokens(), config.vocab_size, options.precision.activations,
                           options.logits_bytes),
            options.loss) {
  const Shape tokens = {options.batch.tokens()};
  const auto device = [&](DType dtype, const Shape& shape, const char* name) {
    return arena.allocate(MemoryKind::device, dtype, shape, name);
  };
  const auto pinned = [&](DType dtype, const Shape& shape, const char* name) {
    return arena.allocate(MemoryKind::pinned, dtype, shape, name);
  };
  inputs_ = device(DType::i32, tokens, "batch/inputs");
  targets_ = device(DType::i32, tokens, "batch/targets");
  token_order_ = device(DType::i32, tokens, "batch/token order");
  losses_ = device(DType::f32, tokens, "batch/losses");
  correct_ = device(DType::u8, tokens, "batch/correct");
  scale_ = device(DType::f32, {1}, "step sums/scale");
  loss_words_ = device(DType::i64, {kFixedPointWords}, "step sums/loss");
  host_scale_ = pinned(DType::f32, {1}, "step sums/host");
  host_correct_ = pinned(DType::u8, {2, options.batch.tokens()}, "batch/correct");
  host_norm_words_ = pinned(DType::i64, {kFixedPointWords}, "step sums/host");
  host_loss_words_ = pinned(DType::i64, {kFixedPointWords}, "step sums/host");
}

}  // namespace tessera
