#include "runtime/run/sample_writer.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/progress.h"
#include "kernels/kernel_table.h"
#include "model/sampler.h"
#include "model/tokenizer/terminal_text.h"

namespace tessera {

SampleWriter::SampleWriter(const RunConfig& options, std::unique_ptr<Tokenizer> tokenizer,
                           Index end_token, TrainingRun& run, Arena& arena)
    : options_(options),
      decoder_(kernel_table(arena.device().kind), run.config(), run.model_layout(),
               sample_capacity(options), run.settings().scratch.precision.activations,
               run.scratch().decoder_work(), arena, run.adapters()),
      tokenizer_(std::move(tokenizer)),
      vocab_(std::min(tokenizer_->vocab_size(), run.config().vocab_size)),
      end_tokens_(end_tokens_of(*tokenizer_, end_token)) {
  std::vector<std::uint32_t> ids = tokenizer_->begin_tokens();
  tokenizer_->encode(options.sample.prompt, ids);
  prompt_.assign(ids.begin(), ids.end());
  const Index room = decoder_.capacity() - options.sample.tokens;
  if (prompt_.empty() || std::ssize(prompt_) > room ||
      std::any_of(ids.begin(), ids.end(), [this](std::uint32_t id) { return id >= vocab_; })) {
    throw ConfigError(
        fmt::format("--sample-prompt makes {} tokens: at least 1, at most {}, each below {}",
                    prompt_.size(), room, vocab_),
        TESSERA_HERE);
  }
}

std::string SampleWriter::text(TrainingRun& run,
                               const std::function<bool(std::int32_t)>& continues) {
  const std::int64_t step = run.trainer().position().step;
  // What a document begins with is not of the user's text.
  std::vector<std::int32_t> ids(prompt_.begin() + std::ssize(tokenizer_->begin_tokens()),
                                prompt_.end());
  try {
    generate(decoder_, run.model_params(), run.compute(), prompt_,
             {.sampling = {.temperature = options_.sample.temperature,
                           .top_p = SamplingOptions{}.top_p,
                           .seed = options_.seed + static_cast<std::uint64_t>(step)},
              .max_tokens = options_.sample.tokens,
              .vocab = vocab_,
              .end_tokens = end_tokens_,
              .cache = KeyCache::keep},
             [&](std::int32_t id) {
               ids.push_back(id);
               enter_phase("sample");
               return continues(id);
             });
  } catch (const DivergedError& error) {
    return fmt::format("no sample at step {}: {}", step, error.message());
  }
  return fmt::format("sample at step {}: {}", step, terminal_text(tokenizer_->decode(ids)));
}

}  // namespace tessera
