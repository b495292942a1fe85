#include "jobs/tokenize/text.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "jobs/program.h"
#include "jobs/progress_bar.h"
#include "jobs/tokenize/document_encoder.h"
#include "jobs/tokenize/outputs.h"
#include "jobs/tokenize/text_encoder.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/read_error.h"
#include "model/tokenizer/kinds.h"
#include "runtime/data/id_file.h"
#include "runtime/data/input_files.h"
#include "runtime/data/text_file.h"
#include "runtime/data/text_kind.h"
#include "runtime/data/token_file.h"

namespace tessera::tokenize {
namespace {

// Text encoded in one call, where it may be cut anywhere.
constexpr std::size_t kAnyPieceBytes = std::size_t{1} << 20U;

// Hands the text of all inputs over to the encoder, and counts what is not text.
class TextReader {
 public:
  // Without cuts: the text may be cut anywhere.
  TextReader(const Options& options, InputFiles inputs, const std::optional<TextCuts>& cuts,
             TextEncoder& encoder, Outputs& outputs)
      : options_(options),
        inputs_(std::move(inputs)),
        cuts_(cuts),
        encoder_(encoder),
        outputs_(outputs) {
    for (const InputFiles::File& file : inputs_.files) {
      if (file.was_named) {
        refuse_other_kind(file.path);  // before hours of work
      }
    }
  }

  void read_all() {
    const auto count = static_cast<Index>(inputs_.files.size());
    {
      ProgressBar progress("reading files", ProgressUnit::pieces);
      Index done = 0;
      for (const InputFiles::File& file : inputs_.files) {
        progress.update(done++, count);
        read(file);
      }
      encoder_.flush();
    }
    if (outputs_.is_empty()) {
      refuse_nothing();
    }
  }

  void print() const {
    print_lines(fmt::format("read {} ({})\n", count_of(read_, "file", "files"), megabytes(bytes_)));
    print_left_out(inputs_.left_out);
  }

 private:
  void refuse_other_kind(const Path& path) const {
    const std::string_view kind = kind_of(path);
    if (!kind.empty()) {
      throw FormatError(fmt::format("{} is {}", path.string(), kind), TESSERA_HERE);
    }
  }

  // Empty: text, as far as the begin tells.
  [[nodiscard]] std::string_view kind_of(const Path& path) const {
    if (options_.as_text) {
      return {};
    }
    const File file = File::open_read(path);
    std::string begin(kTextKindBytes, '\0');
    begin.resize(file.read_up_to(0, std::as_writable_bytes(std::span(begin))));
    return text_kind(begin);
  }

  void read(const InputFiles::File& file) {
    try {
      if (const std::string_view kind = kind_of(file.path); !kind.empty()) {
        inputs_.left_out.add(kind, file.path);
        return;
      }
      read_text_of(file.path, scan_text(file.path));
    } catch (const MissingError&) {  // it has gone since the folder was listed
      if (file.was_named) {
        throw;
      }
      inputs_.left_out.add("cannot be opened", file.path);
    }
  }

  void read_text_of(const Path& path, const TextScan& scan) {
    if (!scan.is_text || scan.bytes == 0) {
      inputs_.left_out.add(scan.is_text ? "empty" : "not UTF-8 text", path);
      return;
    }
    encoder_.begin_document(scan.hash, static_cast<std::uint64_t>(scan.bytes));
    const auto take = [&](std::string_view piece) {
      encoder_.make_room();
      encoder_.add(piece);
    };
    if (cuts_) {
      read_text(path, scan, *cuts_, take);
    } else {
      read_text(path, scan, kAnyPieceBytes, take);
    }
    encoder_.end_document();
    bytes_ += scan.bytes;
    ++read_;
  }

  [[noreturn]] void refuse_nothing() const {
    const Index count = read_ + inputs_.left_out.count();
    std::string left_out;
    for (const LeftOut::Row& row : inputs_.left_out.rows()) {
      left_out += count == 1 ? fmt::format(", {}", row.reason)
                             : fmt::format(", {} of them {}", row.count, row.reason);
    }
    const bool has_ids =
        std::any_of(inputs_.files.begin(), inputs_.files.end(),
                    [](const InputFiles::File& file) { return IdFile::has_name(file.path); });
    refuse(fmt::format("no text in {}: {}{}{}", source_of(options_.paths),
                       count_of(count, "file", "files"), left_out,
                       has_ids ? " (--tokenizer ids reads .npy and .bin files)" : ""));
  }

  const Options& options_;
  InputFiles inputs_;
  const std::optional<TextCuts>& cuts_;
  TextEncoder& encoder_;
  Outputs& outputs_;
  Index read_ = 0;
  Index bytes_ = 0;
};

// Of all files, about: some may turn out not to be text.
std::uint64_t bytes_of(const InputFiles& inputs) {
  std::uint64_t bytes = 0;
  for (const InputFiles::File& file : inputs.files) {
    std::error_code ignored;  // it may have gone
    const auto size = std::filesystem::file_size(file.path, ignored);
    bytes += ignored ? 0 : size;
  }
  return bytes;
}

}  // namespace

void tokenize_text(const Options& options) {
  const TokenizerFiles files = read_tokenizer_files(options.tokenizer, options.tokenizer_kind);
  const std::unique_ptr<Tokenizer> tokenizer =
      make_tokenizer(files, tokenizer_source(options.tokenizer, files));
  InputFiles inputs = list_files(options.paths);
  Outputs outputs(options, info_of(options, files, *tokenizer), files,
                  TokenFileWriter::Mask::absent, bytes_of(inputs));
  const DocumentEncoder documents(files, *tokenizer);
  TextEncoder encoder(documents, outputs, files.kind == kBytesKind ? 1 : options.threads);
  TextReader reader(options, std::move(inputs), documents.cuts(), encoder, outputs);
  reader.read_all();
  outputs.commit("give a larger share or more files: each file is one document");
  reader.print();
  encoder.print_losses();
  print_missing_end_token(files, *tokenizer);
}

}  // namespace tessera::tokenize
