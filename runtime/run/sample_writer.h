// --sample-every: the texts that the model writes on the way, one of each prompt.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/device/arena.h"
#include "model/decoder.h"
#include "model/tokenizer/tokenizer.h"
#include "runtime/checkpoint/run_tokenizer.h"
#include "runtime/run/config.h"
#include "runtime/run/training_run.h"

namespace tessera {

/// That of the data. Throws ConfigError where it is not known: its ids were made elsewhere.
[[nodiscard]] std::unique_ptr<Tokenizer> sample_tokenizer(const RunTokenizer& tokenizer);

/// All of its memory is made at set-up.
class SampleWriter {
 public:
  /// Keeps a reference to `options`. `tokenizer` is the data's, and so is `end_token` (-1: none),
  /// beside which the tokenizer's stop tokens end a text. Throws ConfigError for a prompt that it
  /// makes nothing of.
  SampleWriter(const RunConfig& options, std::unique_ptr<Tokenizer> tokenizer, Index end_token,
               TrainingRun& run, Arena& arena);

  /// A line for each prompt, or one alone that says why there are none. `continues` is asked after
  /// a token of each text, with these tokens (kNoToken: the text has ended); at the first false all
  /// end. Requires: the trainer has been synchronised. Collective where acquiring parameters is.
  [[nodiscard]] std::vector<std::string> texts(
      TrainingRun& run, const std::function<bool(std::span<const std::int32_t>)>& continues);
  [[nodiscard]] std::size_t prompts() const noexcept { return prompts_.size(); }

 private:
  [[nodiscard]] std::vector<std::int32_t> tokens_of(std::size_t prompt) const;

  const RunConfig& options_;
  Decoder decoder_;
  std::unique_ptr<Tokenizer> tokenizer_;
  Index vocab_;
  std::vector<std::int32_t> end_tokens_;
  std::vector<std::vector<std::int32_t>> prompts_;
};

}  // namespace tessera
