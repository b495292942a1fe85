// HDF5 token files: what `tokenize` writes and the loader reads. The format is described in
// runtime/data/token_file.md. A reader lets HDF5 say where the data lies, then reads it piece by
// piece (pread, not mmap: a file that is cut short under us is an error and no SIGBUS): no token
// file is ever read whole, and no HDF5 call is made after opening.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/types.h"
#include "model/tokenizer/kinds.h"

namespace tessera {

inline constexpr int kTokenFileVersion = 1;

/// What a token file says about itself.
struct TokenFileInfo {
  std::string tokenizer;       // of model/tokenizer/kinds.h, or "ids" (made elsewhere)
  std::string tokenizer_name;  // file name of the tokenizer's model; may be empty
  Index vocab_size = 0;        // every id is below it
  Index end_token = -1;        // id that ends a document; -1: none
  std::string source;          // where the text came from, for people
  Index source_bytes = 0;      // of the text; 0 where it is not known
  bool is_chats = false;       // each document is a chat
};

/// A token file that is only read. Move-only; safe to read from several threads. What reads the
/// file throws FormatError naming it where it cannot be read, or has become shorter since it was
/// opened. A file that is replaced by renaming stays as it was: the one that was opened is read on.
class TokenFile {
 public:
  /// Opens and checks. Throws as File::open_read, and FormatError if it is not a token file, of
  /// another version, damaged, truncated or without tokens.
  explicit TokenFile(const std::filesystem::path& path);
  ~TokenFile();
  TokenFile(TokenFile&& other) noexcept;
  TokenFile& operator=(TokenFile&& other) noexcept;
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const noexcept;
  [[nodiscard]] const TokenFileInfo& info() const noexcept;
  [[nodiscard]] Index token_count() const noexcept;  // > 0
  [[nodiscard]] Index document_count() const noexcept;
  [[nodiscard]] bool has_mask() const noexcept;
  /// XXH3-128 over tokens, documents, mask and what gives ids their meaning, as written in the
  /// file: 32 hexadecimal digits. Not compared with the data at opening: see verify_content.
  [[nodiscard]] const std::string& content_hash() const noexcept;
  /// Bytes of the tokenizer's own file; empty if the file holds none.
  [[nodiscard]] std::string_view tokenizer_model() const noexcept;
  /// What is kept beside it (kTokenizerCompanions).
  [[nodiscard]] const std::vector<TokenizerFile>& tokenizer_companions() const noexcept;

  /// Tokens [begin, begin + out.size()) as they are, unchecked: ids of 2^31 and above come out
  /// negative. Returns the largest id, 0 for none.
  /// Requires: 0 <= begin, begin + out.size() <= token_count().
  [[nodiscard]] std::uint32_t read_tokens(Index begin, std::span<std::int32_t> out) const;
  /// Replaces `out` by where documents start within [begin, end), ascending.
  void document_starts(Index begin, Index end, std::vector<Index>& out) const;
  /// Where documents first, first + 1, ... begin, as many as `out` has room for.
  /// Requires: 0 <= first, first + out.size() <= document_count().
  void read_document_starts(Index first, std::span<std::uint64_t> out) const;
  /// The mask of tokens [begin, begin + out.size()): 1 where a token counts as a target, 0 where
  /// not. Requires: has_mask(), 0 <= begin, begin + out.size() <= token_count().
  void read_mask(Index begin, std::span<std::uint8_t> out) const;
  /// Whether any token is a target: not the first of its document, and not masked. Reads the mask
  /// up to the first one.
  [[nodiscard]] bool has_targets() const;
  /// How many are. Reads the whole mask.
  [[nodiscard]] Index target_count() const;
  /// Throws FormatError if the file was written to since it was opened, but for one that has the
  /// same length and header: then it was only touched. One call to the system, most times.
  void require_unchanged() const;

  /// Reads everything and compares it with content_hash(). Throws FormatError.
  void verify_content() const;

 private:
  friend class ContentCheck;
  // Stops at the first piece of the mask after which they are `enough`.
  [[nodiscard]] Index count_targets(Index enough) const;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Compares the content of a file with its content_hash() a part at a time, beside other work. For
/// one thread. The file must outlive it, and may be moved.
class ContentCheck {
 public:
  explicit ContentCheck(const TokenFile& file);
  ~ContentCheck();
  ContentCheck(ContentCheck&& other) noexcept;
  ContentCheck& operator=(ContentCheck&& other) noexcept;
  ContentCheck(const ContentCheck&) = delete;
  ContentCheck& operator=(const ContentCheck&) = delete;

  /// Reads up to `bytes` more. Throws FormatError where the last of them show that the content is
  /// not what was written.
  void advance(std::uint64_t bytes);
  [[nodiscard]] bool is_done() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Writes a token file piece by piece in bounded memory. Until `commit` has returned there is
/// nothing under the final name (or what was there before): the pieces are stored in unnamed files
/// of the same folder, which vanish with the process.
class TokenFileWriter {
 public:
  enum class Mask : std::uint8_t { absent, present };

  /// Replaces nothing but a token file: throws ConfigError if another file, a device or a pipe is
  /// at `path`, or a link to nothing; of a link, what it leads to is replaced and the link stays.
  /// Requires: 0 < info.vocab_size <= 2^31. Throws WriteError if the folder of `path` cannot be
  /// written or `path` is a folder.
  TokenFileWriter(std::filesystem::path path, TokenFileInfo info, std::string tokenizer_model,
                  Mask mask);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  /// The next token begins a new document. Documents without tokens leave no trace.
  void begin_document() noexcept;
  /// Requires: every id < vocab_size; mask.size() == ids.size() if the file has a mask, else 0.
  /// Throws WriteError.
  void append(std::span<const std::uint32_t> ids, std::span<const std::uint8_t> mask = {});
  /// Keeps files beside the tokenizer's. Requires: names of kTokenizerCompanions, each once.
  void keep_companions(std::vector<TokenizerFile> companions);
  /// Counts text behind the tokens (TokenFileInfo::source_bytes).
  void add_source_bytes(Index bytes) noexcept;

  [[nodiscard]] Index token_count() const noexcept;
  [[nodiscard]] Index document_count() const noexcept;
  [[nodiscard]] const std::filesystem::path& path() const noexcept;

  /// Makes the file, all of it on disk, and renames it into place. Throws WriteError, or
  /// ConfigError if what must not be replaced has appeared there; the temporary is removed then.
  /// Requires: token_count() > 0, not called before.
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
