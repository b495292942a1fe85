// The token files that tokenize writes, and what it prints.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "jobs/tokenize/options.h"
#include "runtime/data/input_files.h"
#include "runtime/data/token_file.h"

namespace tessera::tokenize {

/// The token file, and the one for held-out documents.
///
/// A document is held out as a whole where its hash says so, so that equal ones are on the same side.
/// One that is too large a part of all for that gives its own share, from its end on.
class Outputs {
 public:
  /// `input_bytes`: of all documents, about; 0: none is cut.
  Outputs(const Options& options, const TokenFileInfo& info, const TokenizerFiles& files,
          TokenFileWriter::Mask mask, std::uint64_t input_bytes);

  /// The next ids are of a new document of so many bytes, or whatever else `append` counts; 0: it
  /// is not known, and the document is not cut.
  void begin_document(std::uint64_t hash, std::uint64_t size);
  /// Ids of the document that stand for `size` of it, and for so many bytes of text
  /// (TokenFileInfo::source_bytes; 0: not known).
  void append(std::span<const std::uint32_t> ids, std::span<const std::uint8_t> mask,
              std::uint64_t size, Index text_bytes = 0);
  /// Renames both into place and prints what they hold.
  void commit(std::string_view hint_on_documents);
  [[nodiscard]] bool is_empty() const;

 private:
  double share_;
  std::uint64_t most_whole_;  // bytes of a document that is held out as a whole
  TokenFileWriter all_;
  std::optional<TokenFileWriter> held_out_;
  TokenFileWriter* writer_ = nullptr;  // of the document
  std::uint64_t left_ = 0;             // of the document before the part that is held out
};

/// "1 file", "2,000 files".
[[nodiscard]] std::string count_of(Index count, std::string_view one, std::string_view many);

/// "1.5 MB".
[[nodiscard]] std::string megabytes(Index bytes);

/// What a token file says of where it came from: the first of `paths`, and how many more.
[[nodiscard]] std::string source_of(const std::vector<Path>& paths);

/// What a token file of these texts says at its beginning.
[[nodiscard]] TokenFileInfo info_of(const Options& options, const TokenizerFiles& files,
                                    const Tokenizer& tokenizer);

/// Warns where documents follow each other without a token between them.
void print_missing_end_token(const TokenizerFiles& files, const Tokenizer& tokenizer);
/// Warns of line ends that the tokenizer has not kept, if there are any.
void print_lost_line_ends(Index count);

/// A line for each reason.
void print_left_out(const LeftOut& left_out);

/// One line: tokens, documents, vocabulary.
void print_contents(const TokenFile& file);

}  // namespace tessera::tokenize
