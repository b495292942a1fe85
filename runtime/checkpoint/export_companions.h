// What a Hugging Face folder of a run's model holds beside the weights: its tokenizer, and where
// generated text ends.
#pragma once

#include <filesystem>
#include <vector>

#include "model/tokenizer/kinds.h"
#include "runtime/checkpoint/run_tokenizer.h"

namespace tessera {

/// The tokenizer's files as the run keeps them (none for bytes and ids made elsewhere), and a
/// generation_config.json with the tokens at which `generate` stops: the one that came with the
/// tokenizer, to which those that it lacks are added. None where no such token is known; a tokenizer
/// that this build cannot read has the data's end token alone.
[[nodiscard]] std::vector<TokenizerFile> export_companions(const RunTokenizer& tokenizer);

/// Writes those of the run in `run_folder`, if it has a tokenizer, into the folder `to`. Returns how
/// many files the tokenizer has. Throws as read_run_tokenizer, and WriteError.
int write_companions(const std::filesystem::path& run_folder, const std::filesystem::path& to);

/// Copies chat_template.jinja of the folder of a run or of adapters into the folder `to`, in the place
/// of what its base had; where there is none, nothing. Throws as read_whole_file, and WriteError.
void write_chat_template(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace tessera
