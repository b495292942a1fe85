#include "jobs/generate/generator.h"

namespace tessera::generation {
namespace {

ScratchOptions one_tile(DType dtype, const AdapterLayout* adapters) {
  ScratchOptions buffers;
  buffers.batch = {1, Decoder::kTile};
  buffers.precision = precision_of(dtype);
  buffers.recompute = Recompute::block;
  buffers.decodes = true;
  buffers.adapters = adapters;
  return buffers;
}

}  // namespace

Generator::Generator(const Options& options, const LoadedModel& loaded)
    : config_(loaded.config),
      layout_(config_),
      dtype_(options.dtype),
      arena_(options.device, ArenaMode::allocate),
      stream_(options.device, StreamPriority::normal, "compute"),
      model_(layout_, dtype_, loaded.source, arena_, stream_),
      adapters_(loaded.adapters),
      kernels_(kernel_table(options.device.kind)),
      scratch_(kernels_, config_, one_tile(dtype_, adapters_), arena_) {
  if (adapters_ != nullptr) {
    own_.emplace(adapters_->params(), dtype_, loaded.adapter_source, arena_, stream_);
  }
}

void Generator::run(std::span<const std::int32_t> prompt, const GenerationOptions& how,
                    const std::function<bool(std::int32_t)>& on_token) {
  const Index needed = std::ssize(prompt) + how.max_tokens;
  if (!decoder_ || decoder_->capacity() < needed) {
    decoder_.reset();  // its memory first
    decoder_.emplace(kernels_, config_, layout_, needed, dtype_, scratch_.decoder_work(), arena_,
                     adapters_);
  }
  generate(*decoder_, ModelParams(model_, own_ ? &*own_ : nullptr), stream_, prompt, how, on_token);
}

}  // namespace tessera::generation
