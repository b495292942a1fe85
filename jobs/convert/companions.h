// What goes along with weights: a tokenizer, and what else inference engines read beside them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "model/model_config.h"
#include "runtime/data/tokenizer_match.h"

namespace tessera {

/// The tokenizer's files of a Hugging Face folder, if it has one. They are not understood here: what is
/// wrong with them says who uses them. Throws FormatError for a file that is something else.
[[nodiscard]] std::optional<TokenizerFiles> tokenizer_files_of(const std::filesystem::path& folder);

/// Writes them where generate and export find them.
void keep_tokenizer(const TokenizerFiles& files, const ModelConfig& config,
                    const std::filesystem::path& run_folder);

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
