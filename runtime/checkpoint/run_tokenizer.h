// What gives a run's token ids their meaning, kept beside its steps: RUN/tokens.json, the
// tokenizer's file under the name of its kind (model/tokenizer/kinds.h: tokenizer.model,
// tokenizer.json, ...), and what was beside it (tokenizer_config.json, ...). See format.md.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/types.h"
#include "model/tokenizer/kinds.h"

namespace tessera {

inline constexpr std::string_view kIdsKind = "ids";

struct RunTokenizer {
  std::string kind;      // of model/tokenizer/kinds.h, or "ids": made elsewhere
  Index vocab_size = 0;  // ids below it occur
  Index end_token = -1;  // -1: none
  std::string model;     // bytes of the tokenizer's file
  std::vector<TokenizerFile> companions = {};  // what was beside it
};

/// For make_tokenizer and kept_files.
[[nodiscard]] TokenizerFiles files_of(const RunTokenizer& tokenizer);

/// The run's folder that a step is in.
[[nodiscard]] std::filesystem::path run_folder_of(const std::filesystem::path& step);
/// Says in a run's folder what its tokens are. Nothing that is known is lost: a description of ids
/// made elsewhere does not replace that of a tokenizer, and a tokenizer that another replaces is
/// renamed; returns the new names. Throws WriteError, FormatError.
std::vector<std::string> write_run_tokenizer(const std::filesystem::path& run_folder,
                                             const RunTokenizer& tokenizer);
/// Whether `write_run_tokenizer` could write: throws what it would, and changes nothing.
void require_tokenizer_place(const std::filesystem::path& run_folder,
                             const RunTokenizer& tokenizer);
/// Empty if the folder has none. Throws FormatError.
[[nodiscard]] std::optional<RunTokenizer> read_run_tokenizer(
    const std::filesystem::path& run_folder);

}  // namespace tessera
