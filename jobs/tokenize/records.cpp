#include "jobs/tokenize/records.h"

#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "jobs/program.h"
#include "jobs/progress_bar.h"
#include "jobs/tokenize/document_encoder.h"
#include "jobs/tokenize/outputs.h"
#include "jobs/tokenize/record_encoder.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/hash.h"
#include "kernels/base/input_file.h"
#include "kernels/base/quantity.h"
#include "kernels/base/read_error.h"
#include "model/tokenizer/chat/chat_encoder.h"
#include "runtime/data/byte_stream.h"
#include "runtime/data/input_files.h"
#include "runtime/data/json_lines.h"
#include "runtime/data/token_file.h"

namespace tessera::tokenize {
namespace {

// Documents are counted in tokens here, their files in bytes; of the order of tokens each.
constexpr std::uint64_t kBytesOfToken = 4;

// A file and what came out of it. A source is what the command line names.
struct Input {
  Path path;
  std::size_t source = 0;
  bool was_named = false;
  std::uint64_t bytes = 0;
};

struct Inputs {
  std::vector<Input> files;
  std::uint64_t bytes = 0;
  LeftOut left_out;

  explicit Inputs(const std::vector<Path>& paths) {
    for (std::size_t source = 0; source < paths.size(); ++source) {
      InputFiles found = list_files({paths[source]});
      left_out.add(found.left_out);
      for (const InputFiles::File& file : found.files) {
        if (!file.was_named && !has_json_lines_name(file.path)) {
          left_out.add("not named .jsonl or .ndjson (with or without .gz or .zst)", file.path);
          continue;
        }
        const File opened = File::open_read(file.path);
        refuse_other_kinds(opened);
        files.push_back({file.path, source, file.was_named, opened.size()});
        bytes += files.back().bytes;
      }
    }
  }

 private:
  // before hours of work
  static void refuse_other_kinds(const File& file) {
    std::string begin(kForeignBytes, '\0');
    begin.resize(file.read_up_to(0, std::as_writable_bytes(std::span(begin))));
    if (is_compressed(begin)) {
      return;
    }
    if (const std::string_view foreign = foreign_content(begin); !foreign.empty()) {
      throw FormatError(fmt::format("{} is {}", file.path().string(), foreign), TESSERA_HERE);
    }
  }
};

// Writes lines that have been encoded, in their order, and counts.
class RecordWriter {
 public:
  RecordWriter(const Options& options, const Inputs& inputs, const Tokenizer& tokenizer,
               Outputs& outputs)
      : options_(options),
        inputs_(inputs),
        tokenizer_(tokenizer),
        outputs_(outputs),
        source_tokens_(options.paths.size()),
        source_documents_(options.paths.size()) {}

  void take(const EncodedLine& line) {
    if (line.is_blank) {
      return;
    }
    if (!line.bad.empty()) {
      take_bad(line);
      return;
    }
    if (line.ids.empty()) {
      ++empty_;
      return;
    }
    const auto tokens = std::ssize(line.ids);
    // a chat is not cut: what comes behind a cut would be without its questions
    outputs_.begin_document(xxh3_128(std::as_bytes(std::span(line.ids))).high,
                            options_.chat.empty() ? line.ids.size() : 0);
    outputs_.append(line.ids, line.mask, line.ids.size(), line.text_bytes);
    const std::size_t source = inputs_.files[line.source].source;
    source_tokens_[source] += tokens;
    ++source_documents_[source];
    targets_ +=
        line.mask.empty() ? tokens - 1 : std::count(line.mask.begin() + 1, line.mask.end(), 1);
    unknown_ += std::count_if(line.ids.begin(), line.ids.end(), [this](std::uint32_t id) {
      return static_cast<Index>(id) == tokenizer_.unknown_token();
    });
    text_bytes_ += line.text_bytes;
    lost_line_ends_ += line.lost_line_ends;
  }

  void print(bool is_chat) const {
    Index tokens = 0;
    Index documents = 0;
    for (std::size_t i = 0; i < source_tokens_.size(); ++i) {
      tokens += source_tokens_[i];
      documents += source_documents_[i];
    }
    const auto share = [](Index part, Index whole) {
      constexpr double kPercent = 100;
      return whole == 0 ? 0.0 : kPercent * static_cast<double>(part) / static_cast<double>(whole);
    };
    print_lines(fmt::format(
        "read {} ({} of text): {}, {}, {} targets ({:.1f}%)\n",
        count_of(std::ssize(inputs_.files), "file", "files"), megabytes(text_bytes_),
        is_chat ? count_of(documents, "chat", "chats")
                : count_of(documents, "document", "documents"),
        count_of(tokens, "token", "tokens"), grouped(targets_), share(targets_, tokens)));
    for (std::size_t i = 0; i < source_tokens_.size() && source_tokens_.size() > 1; ++i) {
      print_lines(fmt::format("  {}: {}, {} ({:.1f}%)\n", options_.paths[i].string(),
                              is_chat ? count_of(source_documents_[i], "chat", "chats")
                                      : count_of(source_documents_[i], "document", "documents"),
                              count_of(source_tokens_[i], "token", "tokens"),
                              share(source_tokens_[i], tokens)));
    }
    if (empty_ > 0) {
      print_lines(fmt::format("skipped {} without text\n", count_of(empty_, "record", "records")));
    }
    if (bad_ > 0) {
      print_lines(fmt::format("skipped {}, the first {}\n", count_of(bad_, "bad line", "bad lines"),
                              first_bad_));
    }
    print_left_out(inputs_.left_out);
    if (unknown_ > 0) {
      print_lines(fmt::format("warning: {}: the tokenizer has nothing for that text and writes "
                              "its unknown token, id {}\n",
                              count_of(unknown_, "unknown token", "unknown tokens"),
                              tokenizer_.unknown_token()));
    }
    print_lost_line_ends(lost_line_ends_);
  }

  [[nodiscard]] Index bad() const noexcept { return bad_; }

 private:
  void take_bad(const EncodedLine& line) {
    const std::string what = fmt::format("{}: line {} {}", inputs_.files[line.source].path.string(),
                                         line.number, line.bad);
    if (++bad_ > options_.skip_bad) {
      throw FormatError(
          bad_ == 1 ? fmt::format(
                          "{}. Fix it, or give --skip-bad N to leave out up to N such lines", what)
                    : fmt::format("{}; it is bad line number {}, and --skip-bad is {}", what,
                                  grouped(bad_), grouped(options_.skip_bad)),
          TESSERA_HERE);
    }
    if (bad_ == 1) {
      first_bad_ = what;
    }
  }

  const Options& options_;
  const Inputs& inputs_;
  const Tokenizer& tokenizer_;
  Outputs& outputs_;
  std::vector<Index> source_tokens_;
  std::vector<Index> source_documents_;
  Index targets_ = 0;
  Index unknown_ = 0;
  Index lost_line_ends_ = 0;
  Index text_bytes_ = 0;
  Index empty_ = 0;
  Index bad_ = 0;
  std::string first_bad_;
};

// A field of a record as a document.
LineEncoder::Encode field_encoder(const std::string& field, const DocumentEncoder& encoder) {
  return [&field, &encoder](EncodedLine& line) {
    std::optional<Record> record = parse_record(line.text);
    line.text = {};
    line.is_blank = !record;
    if (!record) {
      return;
    }
    const std::string text = take_text(*record, field);
    record.reset();
    line.text_bytes = std::ssize(text);
    if (text.empty()) {
      return;
    }
    const Tokenizer& tokenizer = encoder.tokenizer();
    line.ids = tokenizer.begin_tokens();
    encoder.encode(text, line.ids);
    if (tokenizer.end_token() >= 0) {
      line.ids.push_back(static_cast<std::uint32_t>(tokenizer.end_token()));
    }
    if (!tokenizer.keeps_line_ends()) {
      line.lost_line_ends = std::count(text.begin(), text.end(), '\n');
    }
  };
}

LineEncoder::Encode chat_line_encoder(const ChatEncoder& encoder, bool has_mask) {
  return [&encoder, has_mask](EncodedLine& line) {
    const std::optional<Record> record = parse_record(line.text);
    line.text = {};
    line.is_blank = !record;
    if (!record) {
      return;
    }
    const Chat chat = parse_chat(*record);
    for (const ChatMessage& message : chat.messages) {
      line.text_bytes += message.content ? std::ssize(*message.content) : 0;
    }
    encoder.encode(chat, line.ids, line.mask);
    if (!has_mask) {
      line.mask.clear();
    }
  };
}

void read_lines(const Inputs& inputs, LineEncoder& encoder) {
  ProgressBar progress("reading JSON Lines");
  std::uint64_t before = 0;
  for (std::size_t i = 0; i < inputs.files.size(); ++i) {
    LineReader reader(inputs.files[i].path);
    while (const auto line = reader.next()) {
      progress.update(static_cast<std::int64_t>(before + reader.file_bytes_read()),
                      static_cast<std::int64_t>(inputs.bytes));
      encoder.add(*line, i, reader.line_number());
    }
    before += inputs.files[i].bytes;
  }
  encoder.flush();
}

}  // namespace

void tokenize_records(const Options& options) {
  TokenizerFiles files = read_tokenizer_files(options.tokenizer, options.tokenizer_kind);
  const std::unique_ptr<Tokenizer> tokenizer =
      make_tokenizer(files, tokenizer_source(options.tokenizer, files));
  const DocumentEncoder documents(files, *tokenizer);
  std::optional<ChatEncoder> chats;
  if (!options.chat.empty()) {
    chats.emplace(*tokenizer, choose_chat_format(options.chat, files, options.tokenizer),
                  options.chat_loss, options.tokenizer);
    keep_chat_template(chats->format(), files.companions);
  }
  const bool has_mask = chats && options.chat_loss != ChatLoss::all;
  const Inputs inputs(options.paths);
  Outputs outputs(options, info_of(options, files, *tokenizer), files,
                  has_mask ? TokenFileWriter::Mask::present : TokenFileWriter::Mask::absent,
                  inputs.bytes / kBytesOfToken);
  RecordWriter writer(options, inputs, *tokenizer, outputs);
  LineEncoder encoder(
      options.threads,
      chats ? chat_line_encoder(*chats, has_mask) : field_encoder(options.field, documents),
      [&writer](const EncodedLine& line) { writer.take(line); });
  read_lines(inputs, encoder);
  if (outputs.is_empty()) {
    refuse(
        fmt::format("no documents in {}: {}, {}", source_of(options.paths),
                    count_of(std::ssize(inputs.files), "file of JSON Lines", "files of JSON Lines"),
                    count_of(writer.bad(), "bad line", "bad lines")));
  }
  outputs.commit("give a larger share or more records");
  writer.print(chats.has_value());
  if (!chats) {
    print_missing_end_token(files, *tokenizer);
  }
}

}  // namespace tessera::tokenize
