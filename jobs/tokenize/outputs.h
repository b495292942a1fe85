// The token files that tokenize writes, and what it prints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "jobs/tokenize/options.h"
#include "runtime/data/input_files.h"
#include "runtime/data/token_file.h"

namespace tessera::tokenize {

/// The token file, and the one for held-out documents.
class Outputs {
 public:
  Outputs(const Options& options, const TokenFileInfo& info, const std::string& model,
          TokenFileWriter::Mask mask);

  /// Where a document with this hash belongs.
  [[nodiscard]] TokenFileWriter& choose(std::uint64_t hash);
  /// Renames both into place and prints what they hold.
  void commit(std::string_view hint_on_documents);
  [[nodiscard]] bool is_empty() const;

 private:
  double share_;
  TokenFileWriter all_;
  std::optional<TokenFileWriter> held_out_;
};

/// "1 file", "2,000 files".
[[nodiscard]] std::string count_of(Index count, std::string_view one, std::string_view many);

/// "1.5 MB".
[[nodiscard]] std::string megabytes(Index bytes);

/// What a token file says of where it came from: the first of `paths`, and how many more.
[[nodiscard]] std::string source_of(const std::vector<Path>& paths);

/// A line for each reason.
void print_left_out(const LeftOut& left_out);

/// One line: tokens, documents, vocabulary.
void print_contents(const TokenFile& file);

}  // namespace tessera::tokenize
