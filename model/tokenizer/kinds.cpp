#include "model/tokenizer/kinds.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/hash.h"
#include "kernels/base/hub_name.h"
#include "kernels/base/input_file.h"
#include "kernels/base/output_file.h"
#include "kernels/base/read_error.h"

namespace tessera {
namespace {

constexpr std::string_view kJsonFile = "tokenizer.json";
constexpr std::string_view kModelFile = "tokenizer.model";
constexpr std::string_view kQwenFile = "qwen.tiktoken";
constexpr std::string_view kOtherTokenizers =
    "a tokenizer.json, a file in tiktoken's form, a SentencePiece model, or bytes";

std::unique_ptr<Tokenizer> make_bytes(const TokenizerFiles& /*files*/,
                                      std::string_view /*source*/) {
  return make_byte_tokenizer();
}
std::unique_ptr<Tokenizer> make_sentencepiece(const TokenizerFiles& files,
                                              std::string_view source) {
  return make_sentencepiece_tokenizer(files.content, source);
}

constexpr std::array<TokenizerKind, 6> kKinds = {{
    {kBytesKind, "bytes", "", &make_bytes},
    {kSentencePieceKind, "a SentencePiece model", kModelFile, &make_sentencepiece},
    {kTokenizerJsonKind, "a tokenizer.json", kJsonFile, &make_json_tokenizer},
    {"tiktoken-llama3", "Llama 3's tiktoken file", kModelFile, &make_tiktoken_tokenizer},
    {"tiktoken-llama4", "Llama 4's tiktoken file", kModelFile, &make_tiktoken_tokenizer},
    {"tiktoken-qwen", "Qwen's tiktoken file", kQwenFile, &make_tiktoken_tokenizer},
}};

// Of a SentencePiece model and the tokenizer.json that was made of it the model is taken, which is read
// whatever the other holds.
std::filesystem::path file_in_folder(const std::filesystem::path& folder) {
  const bool has_json = entry_exists(folder / kJsonFile);
  if (entry_exists(folder / kModelFile) &&
      (!has_json || !is_tiktoken(first_bytes(folder / kModelFile, kForeignBytes)))) {
    return folder / kModelFile;
  }
  for (const std::string_view name : {kJsonFile, kQwenFile}) {
    if (entry_exists(folder / name)) {
      return folder / name;
    }
  }
  throw ConfigError(fmt::format("{} has neither {} nor {}: give a Hugging Face folder, {}",
                                folder.string(), kJsonFile, kModelFile, kOtherTokenizers),
                    TESSERA_HERE);
}

std::string kind_of_content(std::string_view content, std::string_view source) {
  const std::size_t begin = content.find_first_not_of(" \t\r\n");
  if (begin != std::string_view::npos && content[begin] == '{') {
    return std::string(kTokenizerJsonKind);
  }
  const std::string_view tiktoken = tiktoken_kind_of(content, source);
  return std::string(tiktoken.empty() ? kSentencePieceKind : tiktoken);
}

}  // namespace

std::string TokenizerFiles::hash() const {
  return content.empty() ? std::string() : xxh3_128(bytes_of(content)).text();
}

std::string tokenizer_source(const std::filesystem::path& given, const TokenizerFiles& files) {
  const bool is_file_of_folder =
      !files.name.empty() && given.filename() != files.name && is_folder(given);
  return (is_file_of_folder ? given / files.name : given).string();
}

std::span<const TokenizerKind> tokenizer_kinds() {
  return kKinds;
}

const TokenizerKind* find_tokenizer_kind(std::string_view name) {
  const auto* const row = std::find_if(
      kKinds.begin(), kKinds.end(), [&](const TokenizerKind& kind) { return kind.name == name; });
  return row == kKinds.end() ? nullptr : row;
}

bool has_tokenizer(const std::filesystem::path& folder) {
  return entry_exists(folder / kJsonFile) || entry_exists(folder / kModelFile) ||
         entry_exists(folder / kQwenFile);
}

std::vector<TokenizerFile> read_companions(const std::filesystem::path& folder,
                                           std::string_view own) {
  std::vector<TokenizerFile> companions;
  for (const std::string_view name : kTokenizerCompanions) {
    if (name != own && entry_exists(folder / name)) {
      companions.push_back(
          {std::string(name), read_whole_file(folder / name, kMostTokenizerBytes)});
    }
  }
  return companions;
}

std::vector<TokenizerFile> kept_files(const TokenizerFiles& files) {
  const TokenizerKind* const row = find_tokenizer_kind(files.kind);
  if (row == nullptr || row->kept_as.empty()) {
    return {};
  }
  std::vector<TokenizerFile> kept = {{std::string(row->kept_as), files.content}};
  kept.insert(kept.end(), files.companions.begin(), files.companions.end());
  return kept;
}

TokenizerFiles read_tokenizer_files(const std::filesystem::path& path, std::string_view kind) {
  TokenizerFiles files;
  if (path == kBytesKind) {
    files.kind = kBytesKind;
    return files;
  }
  if (!path_exists(path)) {
    throw ConfigError(fmt::format("there is no tokenizer {}: give a Hugging Face folder, {}{}",
                                  path.string(), kOtherTokenizers, hub_hint(path)),
                      TESSERA_HERE);
  }
  const std::filesystem::path main = is_folder(path) ? file_in_folder(path) : path;
  files.name = main.filename().string();
  files.content = read_whole_file(main, kMostTokenizerBytes);
  if (files.content.empty()) {
    throw FormatError(fmt::format("{} is empty", main.string()), TESSERA_HERE);
  }
  files.kind = kind.empty() ? kind_of_content(files.content, main.string()) : std::string(kind);
  if (is_folder(path) || main.filename() == kJsonFile) {
    files.companions = read_companions(main.parent_path(), files.name);
  }
  return files;
}

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerFiles& files, std::string_view source) {
  const TokenizerKind* const kind = find_tokenizer_kind(files.kind);
  if (kind == nullptr) {
    std::string known;
    for (const TokenizerKind& row : kKinds) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
    }
    throw FormatError(fmt::format("{} is of the kind {}, which this version does not know ({})",
                                  source, files.kind, known),
                      TESSERA_HERE);
  }
  return kind->make(files, source);
}

}  // namespace tessera
