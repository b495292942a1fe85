// The model that generate continues texts with, and its tokenizer.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "jobs/generate/options.h"
#include "model/adapter_layout.h"
#include "model/model_config.h"
#include "model/tokenizer/kinds.h"
#include "model/whole_model.h"
#include "runtime/data/tokenizer_match.h"

namespace tessera::generation {

struct LoadedModel {
  ModelConfig config;
  WholeModel::Source source;
  std::filesystem::path folder;  // where a tokenizer may lie
  /// Beside the model, and their values; null: there are none.
  const AdapterLayout* adapters = nullptr;
  WholeModel::Source adapter_source = {};
};

struct TextTokens {
  std::unique_ptr<Tokenizer> tokenizer;  // null: ids of unknown meaning
  TokenizerFiles files;                  // that it was made of
  std::string source;                    // of the files, for messages
  Index end_token = -1;                  // of the data that the model was trained on
  std::optional<TokenizerFacts> given;   // of --tokenizer
};

/// --tokenizer, or the one in `folder`. Throws as reading and making a tokenizer do.
[[nodiscard]] TextTokens find_tokenizer(const Options& options,
                                        const std::filesystem::path& folder);
/// Throws ConfigError where the tokenizer is not the model's, or says so on stderr where that is allowed.
/// What lies beside the weights is taken to be theirs.
void compare_tokenizer(const Options& options, const TextTokens& tokens, const LoadedModel& loaded);

}  // namespace tessera::generation
