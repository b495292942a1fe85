#include "jobs/convert/companions.h"

#include <array>
#include <iostream>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "jobs/program.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/hash.h"
#include "kernels/base/input_file.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/checkpoint/run_tokenizer.h"

namespace tessera {
namespace {

constexpr std::array kCompanionFiles = {
    "tokenizer.json",     "tokenizer_config.json", "tokenizer.model",         "vocab.json",
    "merges.txt",         "added_tokens.json",     "special_tokens_map.json", "chat_template.jinja",
    "chat_template.json", "generation_config.json"};

// What generate needs for a run of these tokens.
std::string missing_text(const std::optional<RunTokenizer>& tokens) {
  if (tokens && tokens->kind == kBytesKind) {
    return "the run's tokens are bytes, of which there is no file; generate needs --tokenizer "
           "bytes";
  }
  return "export with --like HF_FOLDER, a folder with the tokenizer that made the run's ids";
}

}  // namespace

std::optional<TokenizerFiles> tokenizer_files_of(const std::filesystem::path& folder) {
  if (!has_tokenizer(folder)) {
    return std::nullopt;
  }
  TokenizerFiles files = read_tokenizer_files(folder);
  constexpr char kFirstByte = '\n';  // of SentencePiece's models: a message of protobuf
  const std::string_view foreign =
      foreign_content(std::string_view(files.content).substr(0, kForeignBytes));
  if (files.kind == kSentencePieceKind && !files.content.starts_with(kFirstByte) &&
      !foreign.empty()) {
    throw FormatError(fmt::format("{} is {}", (folder / files.name).string(), foreign),
                      TESSERA_HERE);
  }
  return files;
}

void keep_tokenizer(const TokenizerFiles& files, const ModelConfig& config,
                    const std::filesystem::path& run_folder) {
  make_run_folder(run_folder);
  const std::vector<std::string> earlier =
      write_run_tokenizer(run_folder, {.kind = files.kind,
                                       .vocab_size = config.vocab_size,
                                       .end_token = -1,
                                       .model = files.content,
                                       .companions = files.companions});
  for (const std::string& name : earlier) {
    say_note(fmt::format("convert: the tokenizer of {} was another one: it is now {}",
                         run_folder.string(), name));
  }
  std::string names = files.name;
  for (const TokenizerFile& file : files.companions) {
    names += ", " + file.name;
  }
  print_lines(fmt::format("kept the tokenizer: {}\n", names));
}

void compare_tokenizers(const std::filesystem::path& run_folder, const std::filesystem::path& like,
                        OnTokenizerMismatch on_mismatch) {
  const auto ours = tokenizer_of_folder(run_folder, run_folder.string());
  const auto theirs = tokenizer_of_folder(like, fmt::format("--like {}", like.string()));
  TokenizerCheck check(on_mismatch);
  if (ours && theirs) {
    check.compare(*ours, *theirs);
  }
  for (const std::string& note : check.notes()) {
    say_note(fmt::format("convert: {}", note));
  }
}

int copy_companions(const std::filesystem::path& from, const std::filesystem::path& to) {
  int copied = 0;
  for (const char* name : kCompanionFiles) {
    if (entry_exists(from / name)) {
      write_whole_file(to / name, bytes_of(read_whole_file(from / name, kMostTokenizerBytes)));
      ++copied;
    }
  }
  return copied;
}

void print_missing_tokenizer(const std::filesystem::path& run_folder,
                             const std::filesystem::path& exported) {
  if (!has_tokenizer(exported)) {
    print_lines(fmt::format("{} has no tokenizer: {}\n", exported.string(),
                            missing_text(read_run_tokenizer(run_folder))));
  }
}

}  // namespace tessera
