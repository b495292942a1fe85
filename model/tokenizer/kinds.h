// Every kind of tokenizer, and the files that it is made of. A further kind is a file with a function
// that makes it, and a row in kinds.cpp.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace tessera {

inline constexpr std::string_view kBytesKind = "bytes";
inline constexpr std::string_view kSentencePieceKind = "sentencepiece";
inline constexpr std::string_view kTokenizerJsonKind = "tokenizer.json";
inline constexpr std::string_view kChatTemplate = "chat_template.jinja";
/// What is kept beside a tokenizer's own file: which tokens end a text or a turn, how chats are written, and
/// for a SentencePiece model the tokenizer.json that Hugging Face made of it.
inline constexpr std::array<std::string_view, 6> kTokenizerCompanions = {
    "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
    kChatTemplate,           "chat_template.json",      kTokenizerJsonKind};
/// A larger file is not a tokenizer.
inline constexpr std::size_t kMostTokenizerBytes = std::size_t{256} << 20U;

struct TokenizerFile {
  std::string name;  // "tokenizer.json"
  std::string content;
  friend bool operator==(const TokenizerFile&, const TokenizerFile&) = default;
};

/// All that a tokenizer is made of.
struct TokenizerFiles {
  std::string kind;
  std::string name;     // of the file that decides the ids, where it has been read: "qwen.tiktoken"
  std::string content;  // of that file; empty for bytes
  std::vector<TokenizerFile> companions;  // those of kTokenizerCompanions that were beside it
  /// XXH3-128 of `content` as text; empty for bytes.
  [[nodiscard]] std::string hash() const;
};

/// What messages call the tokenizer that was read of `given`: of a folder the file in it.
[[nodiscard]] std::string tokenizer_source(const std::filesystem::path& given,
                                           const TokenizerFiles& files);

/// A row of the table.
struct TokenizerKind {
  std::string_view name;
  std::string_view description;  // "a SentencePiece model"
  std::string_view kept_as;      // name of its file beside a run's steps; empty: it has none
  /// `source`: for messages. Throws FormatError (what is wrong with the file), ConfigError (a build
  /// that lacks a library).
  std::unique_ptr<Tokenizer> (*make)(const TokenizerFiles& files, std::string_view source);
};

[[nodiscard]] std::span<const TokenizerKind> tokenizer_kinds();
/// Null: there is no such kind.
[[nodiscard]] const TokenizerKind* find_tokenizer_kind(std::string_view name);

/// The files behind "bytes", a Hugging Face folder, a tokenizer.json, a file in tiktoken's form or a
/// SentencePiece model. `kind`: one of the table's; empty: the content decides. Throws MissingError,
/// ConfigError, FormatError that name `path` and say what to give.
[[nodiscard]] TokenizerFiles read_tokenizer_files(const std::filesystem::path& path,
                                                  std::string_view kind = {});
/// Whether a folder has a file that read_tokenizer_files reads; a link to nothing counts.
[[nodiscard]] bool has_tokenizer(const std::filesystem::path& folder);
/// Those of kTokenizerCompanions that are in `folder`, but not `own`, the tokenizer's own file.
[[nodiscard]] std::vector<TokenizerFile> read_companions(const std::filesystem::path& folder,
                                                         std::string_view own);
/// The names and content under which a run and a Hugging Face folder keep a tokenizer: its own file
/// first. Empty for bytes, and for a kind that is not in the table.
[[nodiscard]] std::vector<TokenizerFile> kept_files(const TokenizerFiles& files);

/// Throws as TokenizerKind::make, and FormatError for a kind that is not in the table.
[[nodiscard]] std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerFiles& files,
                                                        std::string_view source);

// What the rows of the table name, each in a file of its own.
[[nodiscard]] std::unique_ptr<Tokenizer> make_byte_tokenizer();
[[nodiscard]] std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string_view model,
                                                                      std::string_view source);
/// The end token and the stop tokens are those that `companions` name, else the known ones that the
/// file has.
[[nodiscard]] std::unique_ptr<Tokenizer> make_json_tokenizer(const TokenizerFiles& files,
                                                             std::string_view source);
/// `files.kind` says the family: its pattern, special tokens and normalization.
[[nodiscard]] std::unique_ptr<Tokenizer> make_tiktoken_tokenizer(const TokenizerFiles& files,
                                                                 std::string_view source);

/// The kind of a file in tiktoken's form; empty: it is not in that form. Throws FormatError, saying
/// which kinds to choose from, where the vocabulary is not one that is known.
[[nodiscard]] std::string_view tiktoken_kind_of(std::string_view content, std::string_view source);
/// Whether `content` begins as a file in tiktoken's form does: base64, a blank and a number.
[[nodiscard]] bool is_tiktoken(std::string_view content);

}  // namespace tessera
