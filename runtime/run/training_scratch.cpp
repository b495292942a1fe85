#include "runtime/run/training_scratch.h"

#include "kernels/base/fixed_point.h"

namespace tessera {

TrainingScratch::TrainingScratch(const KernelTable& kernels, const ModelConfig& config,
                                 const ScratchOptions& options, Arena& arena)
    : activations_(config, options.batch, options.precision.activations, options.recompute,
                   {.inputs = options.together, .gradients = options.backward_together},
                   options.inputs, options.attention, arena,
                   options.adapters == nullptr ? 0 : options.adapters->block_width()),
      loss_(kernels, arena, options.precision.activations, config.vocab_size, config.hidden_size,
            chunk_rows_for(options.batch.tokens(), config.vocab_size, options.precision.activations,
                           options.logits_bytes),
            options.loss) {
  if (options.precision.recipe != QuantizationRecipe::none) {
    quantized_.emplace(kernels, config, options.batch,
                       QuantizedOptions{.precision = options.precision,
                                        .sets = options.together,
                                        .gradient_sets = options.backward_together,
                                        .storage = options.fp8_weights,
                                        .replaces_params = options.gathers_params},
                       arena);
  }
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
  if (options.attention.documents) {
    documents_ =
        device(DType::i32, {options.together, 2 * options.batch.tokens() + 1}, "batch/documents");
  }
  if (options.adapters != nullptr) {
    d_adapters_ =
        device(options.precision.activations, {options.batch.tokens(), options.adapters->widest()},
               "activations/adapters");
  }
  losses_ = device(DType::f32, tokens, "batch/losses");
  correct_ = device(DType::u8, tokens, "batch/correct");
  scale_ = device(DType::f32, {1}, "step sums/scale");
  loss_words_ = device(DType::i64, {kFixedPointWords}, "step sums/loss");
  host_scale_ = pinned(DType::f32, {1}, "step sums/host");
  host_correct_ = pinned(DType::u8, {2, options.batch.tokens()}, "batch/correct");
  host_norm_words_ = pinned(DType::i64, {kFixedPointWords}, "step sums/host");
  host_loss_words_ = pinned(DType::i64, {kFixedPointWords}, "step sums/host");
  if (options.decodes) {
    decoder_work_ = make_decoder_work(config, options.precision.activations, arena);
  }
}

TensorView TrainingScratch::document_begins(Index set) {
  const Index tokens = inputs_.view().count();
  const Index begin = set * (2 * tokens + 1);
  return documents_.view().slice(begin, begin + tokens + 1);
}

TensorView TrainingScratch::positions(Index set) {
  const Index tokens = inputs_.view().count();
  const Index end = (set + 1) * (2 * tokens + 1);
  return documents_.view().slice(end - tokens, end);
}

DecoderWork TrainingScratch::make_decoder_work(const ModelConfig& config, DType dtype,
                                               Arena& arena) {
  const auto rows = [&](const TensorView& buffer, DType type, Index width) {
    return lend(buffer, type, {Decoder::kTile, width}, arena);
  };
  const BlockActivations block = activations_.block(0);
  const TensorView gemm = activations_.gemm_workspace();
  decoder_own_.push_back(arena.allocate(MemoryKind::pinned, DType::f32, {config.vocab_size},
                                        "generation/logits of the host"));
  const TensorView host_logits = decoder_own_.back().view();
  return {.tokens = lend(inputs_.view(), DType::i32, {Decoder::kTile}, arena),
          .hidden = rows(block.residual, dtype, config.hidden_size),
          .middle = rows(block.middle, dtype, config.hidden_size),
          .normed = rows(activations_.normed(), dtype, config.hidden_size),
          .qkv = rows(block.qkv, dtype, config.qkv_width()),
          .attended = rows(block.attended, dtype, config.query_width()),
          .gate_up = rows(block.gate_up, dtype, 2 * config.intermediate_size),
          .product = rows(activations_.product(), dtype, config.intermediate_size),
          .logits =
              rows(loss_.chunk_logits(), DType::f32, logits_stride(config.vocab_size, DType::f32)),
          .gemm = lend(gemm, gemm.dtype, gemm.shape, arena),
          .host_logits = host_logits,
          .adapters = d_adapters_.empty() ? TensorView{}
                                          : rows(block.adapters, dtype, block.adapters.shape[1])};
}

// The beginning of `buffer`, whatever its type, where that is large enough.
TensorView TrainingScratch::lend(const TensorView& buffer, DType dtype, const Shape& shape,
                                 Arena& arena) {
  const auto bytes_of = [](Index count, DType type) {
    return static_cast<std::size_t>(count) * size_in_bytes(type);
  };
  const std::size_t bytes = bytes_of(shape.count(), dtype);
  if (bytes_of(buffer.count(), buffer.dtype) >= bytes) {
    lent_bytes_ += bytes;
    return {buffer.data, dtype, shape, buffer.device};
  }
  decoder_own_.push_back(
      arena.allocate(MemoryKind::device, dtype, shape, "generation/rows of a tile"));
  return decoder_own_.back().view();
}

}  // namespace tessera
