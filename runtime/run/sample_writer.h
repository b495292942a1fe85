// --sample-every: the text that the model writes on the way.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/arena.h"
#include "model/decoder.h"
#include "model/tokenizer/tokenizer.h"
#include "runtime/run/config.h"
#include "runtime/run/training_run.h"

namespace tessera {

/// All of its memory is made at set-up.
class SampleWriter {
 public:
  /// Keeps a reference to `options`. `tokenizer` is the data's, and so is `end_token` (-1: none),
  /// beside which the tokenizer's stop tokens end a text. Throws ConfigError for a prompt that it
  /// makes nothing of.
  SampleWriter(const RunConfig& options, std::unique_ptr<Tokenizer> tokenizer, Index end_token,
               TrainingRun& run, Arena& arena);

  /// `continues` is asked after each token; at the first false the text ends. Requires: the trainer
  /// has been synchronised. Collective where acquiring parameters is.
  [[nodiscard]] std::string text(TrainingRun& run,
                                 const std::function<bool(std::int32_t)>& continues);

 private:
  const RunConfig& options_;
  Decoder decoder_;
  std::unique_ptr<Tokenizer> tokenizer_;
  Index vocab_;
  std::vector<std::int32_t> end_tokens_;
  std::vector<std::int32_t> prompt_;
};

}  // namespace tessera
