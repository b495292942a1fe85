// A chat with a model, in a terminal or a pipe.
#pragma once

#include "jobs/generate/options.h"
#include "jobs/generate/text_tokens.h"

namespace tessera::generation {

/// Answers options.prompt, or without one each line of stdin until its end, with the turns before in
/// view, and prints the answers. Throws ConfigError where the format cannot be written with the
/// tokenizer, or the chat outgrows the model's positions.
void hold_chat(const Options& options, const TextTokens& tokens, const LoadedModel& loaded);

}  // namespace tessera::generation
