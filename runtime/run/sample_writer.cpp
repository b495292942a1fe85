#include "runtime/run/sample_writer.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/progress.h"
#include "kernels/kernel_table.h"
#include "model/sampler.h"
#include "model/tokenizer/kinds.h"
#include "model/tokenizer/terminal_text.h"

namespace tessera {

std::unique_ptr<Tokenizer> sample_tokenizer(const RunTokenizer& tokenizer) {
  if (tokenizer.kind == kIdsKind) {
    throw ConfigError(
        "--sample-every: the ids of --data were made elsewhere, by a tokenizer that is not known "
        "here; leave it out and look at checkpoints with generate --prompt-ids",
        TESSERA_HERE);
  }
  return make_tokenizer(files_of(tokenizer), "the tokenizer of --data");
}

SampleWriter::SampleWriter(const RunConfig& options, std::unique_ptr<Tokenizer> tokenizer,
                           Index end_token, TrainingRun& run, Arena& arena)
    : options_(options),
      decoder_(kernel_table(arena.device().kind), run.config(), run.model_layout(),
               sample_capacity(options), run.settings().scratch.precision.activations,
               run.scratch().decoder_work(), arena, run.adapters(), sample_texts(options)),
      tokenizer_(std::move(tokenizer)),
      vocab_(std::min(tokenizer_->vocab_size(), run.config().vocab_size)),
      end_tokens_(end_tokens_of(*tokenizer_, end_token)) {
  prompts_.reserve(options.sample.prompts.size());
  for (std::size_t prompt = 0; prompt < options.sample.prompts.size(); ++prompt) {
    prompts_.push_back(tokens_of(prompt));
  }
}

std::vector<std::int32_t> SampleWriter::tokens_of(std::size_t prompt) const {
  std::vector<std::uint32_t> ids = tokenizer_->begin_tokens();
  tokenizer_->encode(options_.sample.prompts[prompt], ids);
  const Index room = decoder_.capacity() - options_.sample.tokens;
  if (ids.empty() || std::ssize(ids) > room ||
      std::any_of(ids.begin(), ids.end(), [this](std::uint32_t id) { return id >= vocab_; })) {
    throw ConfigError(
        fmt::format("--sample-prompt{} makes {} tokens: at least 1, at most {}, each below {}",
                    options_.sample.prompts.size() == 1 ? std::string()
                                                        : fmt::format(" number {}", prompt + 1),
                    ids.size(), room, vocab_),
        TESSERA_HERE);
  }
  return {ids.begin(), ids.end()};
}

std::vector<std::string> SampleWriter::texts(
    TrainingRun& run, const std::function<bool(std::span<const std::int32_t>)>& continues) {
  const std::int64_t step = run.trainer().position().step;
  // What a document begins with is not of the user's text.
  std::vector<std::vector<std::int32_t>> ids;
  ids.reserve(prompts_.size());
  for (const std::vector<std::int32_t>& prompt : prompts_) {
    ids.emplace_back(prompt.begin() + std::ssize(tokenizer_->begin_tokens()), prompt.end());
  }
  try {
    generate(decoder_, run.model_params(), run.compute(), prompts_,
             {.sampling = {.temperature = options_.sample.temperature,
                           .top_p = SamplingOptions{}.top_p,
                           .seed = options_.seed + static_cast<std::uint64_t>(step)},
              .max_tokens = options_.sample.tokens,
              .vocab = vocab_,
              .end_tokens = end_tokens_,
              .cache = KeyCache::keep},
             [&](std::span<const std::int32_t> tokens) {
               for (std::size_t text = 0; text < tokens.size(); ++text) {
                 if (tokens[text] != kNoToken) {
                   ids[text].push_back(tokens[text]);
                 }
               }
               enter_phase("sample");
               return continues(tokens);
             });
  } catch (const DivergedError& error) {
    return {fmt::format("no sample at step {}: {}", step, error.message())};
  }
  std::vector<std::string> lines;
  lines.reserve(ids.size());
  for (const std::vector<std::int32_t>& text : ids) {
    lines.push_back(
        fmt::format("sample{} at step {}: {}",
                    ids.size() == 1 ? std::string() : fmt::format(" {}", lines.size() + 1), step,
                    terminal_text(tokenizer_->decode(text))));
  }
  return lines;
}

}  // namespace tessera
