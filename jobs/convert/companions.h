// What goes along with weights: a tokenizer, and what else inference engines read beside them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "model/model_config.h"
#include "runtime/data/tokenizer_match.h"

namespace tessera {

/// The bytes of FOLDER/tokenizer.model, if there is one. Throws FormatError if it is something
/// else.
[[nodiscard]] std::optional<std::string> sentencepiece_model_of(
    const std::filesystem::path& folder);

/// Writes that model, which came from `from`, where generate finds it. Other tokenizers are not
/// read here.
void keep_tokenizer(const std::string& model, const ModelConfig& config,
                    const std::filesystem::path& from, const std::filesystem::path& run_folder);

/// Throws ConfigError where the Hugging Face folder `like` has a tokenizer of other tokens than the
/// run's, or says so on stderr.
void compare_tokenizers(const std::filesystem::path& run_folder, const std::filesystem::path& like,
                        OnTokenizerMismatch on_mismatch);

/// Copies what an inference engine needs beside the weights, and training does not touch. Returns
/// how many files.
int copy_companions(const std::filesystem::path& from, const std::filesystem::path& to);

/// Says what an exported folder lacks for texts, if it has no tokenizer.
void print_missing_tokenizer(const std::filesystem::path& run_folder,
                             const std::filesystem::path& exported);

}  // namespace tessera
