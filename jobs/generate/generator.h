// Continues texts with a model that it holds.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "jobs/generate/options.h"
#include "jobs/generate/text_tokens.h"
#include "kernels/device/arena.h"
#include "model/decoder.h"
#include "model/param_layout.h"
#include "model/sampler.h"
#include "model/whole_model.h"
#include "runtime/run/training_scratch.h"

namespace tessera::generation {

class Generator {
 public:
  /// Reads the weights. `loaded` must outlive it. Throws as its source does, DeviceError where there is
  /// no room.
  Generator(const Options& options, const LoadedModel& loaded);

  /// As tessera::generate; makes room for the prompt and `how.max_tokens`.
  void run(std::span<const std::int32_t> prompt, const GenerationOptions& how,
           const std::function<bool(std::int32_t)>& on_token);

 private:
  const ModelConfig& config_;
  ParamLayout layout_;
  DType dtype_;
  Arena arena_;
  Stream stream_;
  WholeModel model_;
  const AdapterLayout* adapters_;  // null: there are none
  std::optional<WholeModel> own_;  // the adapters' parameters
  const KernelTable& kernels_;
  TrainingScratch scratch_;
  std::optional<Decoder> decoder_;
};

}  // namespace tessera::generation
