#include "jobs/convert/companions.h"

#include <array>
#include <iostream>
#include <string_view>
#include <vector>

#include <fmt/format.h>

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
constexpr const char* kTokenizerModel = "tokenizer.model";

// A link counts even if it leads nowhere: reading it says where.
bool is_entry(const std::filesystem::path& file) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::symlink_status(file, error));
}

// What generate needs for a run of these tokens.
std::string missing_text(const std::optional<RunTokenizer>& tokens,
                         const std::filesystem::path& run_folder) {
  if (tokens && tokens->kind == "bytes") {
    return "the run's tokens are bytes, of which there is no file; generate needs --tokenizer "
           "bytes";
  }
  if (tokens && tokens->kind == "sentencepiece") {
    return fmt::format("generate needs --tokenizer {}, or export with --like HF_FOLDER",
                       (run_folder / kTokenizerModel).string());
  }
  return "export with --like HF_FOLDER, a folder with the tokenizer that made the run's ids";
}

}  // namespace

std::optional<std::string> sentencepiece_model_of(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kTokenizerModel;
  if (!is_entry(file)) {
    return std::nullopt;
  }
  std::string model = read_whole_file(file, kMostTokenizerBytes);
  constexpr char kFirstByte = '\n';  // of SentencePiece's models: a message of protobuf
  const std::string_view foreign =
      foreign_content(std::string_view(model).substr(0, kForeignBytes));
  if (!model.starts_with(kFirstByte) && !foreign.empty()) {
    throw FormatError(fmt::format("{} is {}", file.string(), foreign), TESSERA_HERE);
  }
  return model;
}

void keep_tokenizer(const std::string& model, const ModelConfig& config,
                    const std::filesystem::path& from, const std::filesystem::path& run_folder) {
  make_run_folder(run_folder);
  const std::vector<std::string> earlier = write_run_tokenizer(
      run_folder,
      {.kind = "sentencepiece", .vocab_size = config.vocab_size, .end_token = -1, .model = model});
  for (const std::string& name : earlier) {
    std::cerr << fmt::format("convert: the tokenizer of {} was another one: it is now {}\n",
                             run_folder.string(), name);
  }
  std::cout << fmt::format("kept the SentencePiece model {}\n", (from / kTokenizerModel).string());
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
    std::cerr << fmt::format("convert: {}\n", note);
  }
}

int copy_companions(const std::filesystem::path& from, const std::filesystem::path& to) {
  int copied = 0;
  for (const char* name : kCompanionFiles) {
    if (is_entry(from / name)) {
      write_whole_file(to / name, bytes_of(read_whole_file(from / name, kMostTokenizerBytes)));
      ++copied;
    }
  }
  return copied;
}

void print_missing_tokenizer(const std::filesystem::path& run_folder,
                             const std::filesystem::path& exported) {
  if (!path_exists(exported / "tokenizer.json") && !path_exists(exported / kTokenizerModel)) {
    std::cout << fmt::format("{} has no tokenizer: {}\n", exported.string(),
                             missing_text(read_run_tokenizer(run_folder), run_folder));
  }
}

}  // namespace tessera
