#include "jobs/generate/text_tokens.h"

#include <iostream>
#include <utility>

#include <fmt/format.h>

#include "jobs/program.h"
#include "runtime/checkpoint/run_tokenizer.h"

namespace tessera::generation {

TextTokens find_tokenizer(const Options& options, const std::filesystem::path& folder) {
  TextTokens found;
  const auto take = [&found](TokenizerFiles files, std::string source) {
    found.tokenizer = make_tokenizer(files, tokenizer_source(source, files));
    found.files = std::move(files);
    found.source = std::move(source);
  };
  if (!options.tokenizer.empty()) {
    take(read_tokenizer_files(options.tokenizer, options.tokenizer_kind), options.tokenizer);
    found.given = tokenizer_of({.kind = found.files.kind,
                                .vocab_size = found.tokenizer->vocab_size(),
                                .end_token = -1,
                                .model = found.files.content},
                               found.files.kind == kBytesKind
                                   ? "--tokenizer"
                                   : fmt::format("--tokenizer {}", options.tokenizer));
  } else if (const auto kept = read_run_tokenizer(folder)) {
    if (kept->kind != kIdsKind) {
      take(files_of(*kept), fmt::format("the tokenizer of {}", folder.string()));
    }
    found.end_token = kept->end_token;
  } else if (has_tokenizer(folder)) {  // Hugging Face's
    take(read_tokenizer_files(folder, options.tokenizer_kind), folder.string());
  }
  return found;
}

void compare_tokenizer(const Options& options, const TextTokens& tokens,
                       const LoadedModel& loaded) {
  TokenizerCheck check(options.on_mismatch);
  if (tokens.given) {
    const auto own = tokenizer_of_folder(loaded.folder, options.from.string());
    if (own) {
      check.compare(*tokens.given, *own);
    }
    if (!own || own->kind == "ids") {
      check.compare_vocabulary(*tokens.given, loaded.config.vocab_size);
    }
  }
  for (const std::string& note : check.notes()) {
    say_note(fmt::format("generate: {}", note));
  }
}

}  // namespace tessera::generation
