// tokenize: text, or token ids made elsewhere, to the HDF5 token files that train reads.
#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <exception>
#include <functional>
#include <iostream>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <boost/program_options.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "jobs/program.h"
#include "jobs/tokenizer.h"
#include "kernels/device/error.h"
#include "kernels/device/output_file.h"
#include "runtime/data/content_hash.h"
#include "runtime/data/file_descriptor.h"
#include "runtime/data/id_file.h"
#include "runtime/data/input_files.h"
#include "runtime/data/text_file.h"
#include "runtime/data/text_kind.h"
#include "runtime/data/token_file.h"
#include "runtime/quantity.h"

namespace tessera {
namespace {

namespace po = boost::program_options;
using Path = std::filesystem::path;

constexpr std::string_view kBytes = "bytes";
constexpr std::string_view kIds = "ids";
constexpr std::size_t kPieceBytes = std::size_t{1} << 20U;  // text encoded in one call
constexpr std::size_t kBatchBytes = std::size_t{8} << 20U;  // text held in memory
constexpr std::size_t kBatchPieces = 4096;
constexpr std::size_t kBlockIds = std::size_t{1} << 16U;
constexpr Index kMaxVocab = Index{1} << 31U;  // of a token file

struct Options {
  std::vector<Path> paths;
  Path out;
  std::string tokenizer;
  std::vector<Path> masks;
  std::optional<Index> vocab;
  std::optional<Index> end_token;
  double held_out = 0;  // share of the documents; 0: none
  Path held_out_path;
  unsigned threads = 1;
  bool check = false;
  bool as_text = false;  // JSON and the like, if they are UTF-8
};

// ---- options

std::string_view usage() {
  return "Usage: tokenize --out FILE.h5 [options] PATH...\n"
         "       tokenize --check FILE.h5...\n\n"
         "Makes a token file for `train --data` out of text files and folders of them, or out of\n"
         "token ids made elsewhere (.npy with a 1-D array of integers, .bin of llm.c).\n"
         "Each text file is one document. In folders, links are followed, and what is not UTF-8 "
         "text "
         "(or is\nJSON, an archive, a pointer of git-lfs, a pipe, a link to nothing) is skipped "
         "and "
         "counted by kind;\na file that is named and is of such a kind is refused.\n\n";
}

Index parse_index(const char* name, const std::string& text) {
  Index value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) {
    throw ConfigError(fmt::format("--{} {} is no whole number", name, text), TESSERA_HERE);
  }
  return value;
}

double parse_share(const char* name, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() ||
      !(value > 0 && value < 1)) {
    throw ConfigError(fmt::format("--{} {} must be a number between 0 and 1: the share of the "
                                  "documents",
                                  name, text),
                      TESSERA_HERE);
  }
  return value;
}

std::vector<Path> to_paths(const po::variables_map& given, const char* name) {
  std::vector<Path> paths;
  if (given.count(name) != 0) {
    for (const std::string& text : given[name].as<std::vector<std::string>>()) {
      paths.emplace_back(text);
    }
  }
  return paths;
}

// nullopt: --help or --version was answered.
std::optional<Options> parse_options(int argc, char** argv) {
  const auto text = [](const char* shown) { return po::value<std::string>()->value_name(shown); };
  po::options_description input("Input");
  input.add_options()("tokenizer", text("bytes|ids|MODEL"),
                      "bytes: an id is a byte (vocabulary 256). MODEL: a SentencePiece model file; "
                      "it is kept in the token file. ids: PATHs are .npy or .bin files. "
                      "Default: ids if all PATHs end in .npy or .bin, else bytes")(
      "vocab", text("N"), "vocabulary of ready ids; default: the highest id + 1")(
      "end-token", text("ID"),
      "ready ids: a document ends behind each ID; default: a file is one document. "
      "(SentencePiece documents end with the model's own end token)")(
      "as-text", "take JSON, JSON Lines and other files as text if they are UTF-8")(
      "mask", po::value<std::vector<std::string>>()->value_name("FILE.npy"),
      "ready ids: 1 where a token counts as a target of training, 0 where not; one file for each "
      "PATH, in their order");
  po::options_description output("Output");
  output.add_options()(
      "out", text("FILE.h5"),
      "the token file; an older token file of this name is replaced, nothing else is")(
      "held-out", text("SHARE"),
      "keep this share of the documents (0.01: one in a hundred) for evaluation, in a second file. "
      "Equal text always falls on the same side")(
      "held-out-out", text("FILE.h5"), "name of the second file; default: OUT with .held-out");
  po::options_description other("Other");
  other.add_options()("threads", text("N"),
                      "threads for SentencePiece; default: one a core. The result is the same")(
      "check", "check token files against their content hash, and say what is in them")(
      "help,h", "this text")("version", "the version");
  po::options_description hidden;
  hidden.add_options()("path", po::value<std::vector<std::string>>());
  po::options_description shown;
  shown.add(input).add(output).add(other);
  po::options_description all;
  all.add(shown).add(hidden);
  po::positional_options_description positions;
  positions.add("path", -1);

  po::variables_map given;
  try {
    // no guessing: an abbreviation that works today may mean something else tomorrow
    const int style =
        po::command_line_style::default_style & ~po::command_line_style::allow_guessing;
    po::store(
        po::command_line_parser(argc, argv).options(all).positional(positions).style(style).run(),
        given);
  } catch (const po::error& error) {
    throw ConfigError(fmt::format("{} (see tokenize --help)", error.what()), TESSERA_HERE);
  }
  if (given.count("help") != 0) {
    std::cout << usage() << shown;
    return std::nullopt;
  }
  if (given.count("version") != 0) {
    std::cout << "tokenize " << TESSERA_VERSION << '\n';
    return std::nullopt;
  }
  const auto value = [&given](const char* name) {
    return given.count(name) != 0 ? given[name].as<std::string>() : std::string();
  };
  Options options;
  options.paths = to_paths(given, "path");
  options.masks = to_paths(given, "mask");
  options.out = value("out");
  options.tokenizer = value("tokenizer");
  options.check = given.count("check") != 0;
  options.as_text = given.count("as-text") != 0;
  if (given.count("vocab") != 0) {
    options.vocab = parse_index("vocab", value("vocab"));
  }
  if (given.count("end-token") != 0) {
    options.end_token = parse_index("end-token", value("end-token"));
  }
  if (given.count("held-out") != 0) {
    options.held_out = parse_share("held-out", value("held-out"));
  }
  options.held_out_path = value("held-out-out");
  constexpr unsigned kMaxThreads = 1024;
  options.threads = std::max(1U, std::thread::hardware_concurrency());
  if (given.count("threads") != 0) {
    const Index threads = parse_index("threads", value("threads"));
    if (threads < 1 || threads > kMaxThreads) {
      throw ConfigError(fmt::format("--threads {} must be 1 to {}", threads, kMaxThreads),
                        TESSERA_HERE);
    }
    options.threads = static_cast<unsigned>(threads);
  }
  return options;
}

[[noreturn]] void refuse(std::string_view message) {
  throw ConfigError(message, TESSERA_HERE);
}

void check_id_options(const Options& options) {
  if (options.tokenizer != kIds) {
    const char* given = !options.masks.empty() ? "mask"
                        : options.vocab        ? "vocab"
                        : options.end_token    ? "end-token"
                                               : nullptr;
    if (given != nullptr) {
      refuse(fmt::format("--{} goes with ready ids (--tokenizer ids), not with --tokenizer {}",
                         given, options.tokenizer));
    }
  }
  if (options.as_text && options.tokenizer == kIds) {
    refuse("--as-text goes with text, not with ready ids (--tokenizer ids)");
  }
  if (options.vocab && (*options.vocab < 1 || *options.vocab > kMaxVocab)) {
    refuse(fmt::format("--vocab {} must be 1 to {}", *options.vocab, kMaxVocab));
  }
  if (options.end_token &&
      (*options.end_token < 0 || *options.end_token >= options.vocab.value_or(kMaxVocab))) {
    refuse(fmt::format("--end-token {} is outside the vocabulary", *options.end_token));
  }
}

void complete_held_out(Options& options) {
  if (options.held_out == 0) {
    if (!options.held_out_path.empty()) {
      refuse("--held-out-out goes with --held-out SHARE");
    }
    return;
  }
  if (options.held_out_path.empty()) {
    options.held_out_path = options.out;
    options.held_out_path.replace_filename(options.out.stem().string() + ".held-out" +
                                           options.out.extension().string());
  }
  if (is_same_place(options.held_out_path, options.out)) {
    refuse(fmt::format("--held-out-out {} is the same file as --out {}",
                       options.held_out_path.string(), options.out.string()));
  }
}

// Fills in defaults and refuses what does not go together.
void complete(Options& options) {
  if (options.paths.empty()) {
    refuse("no PATH to read: give files or folders (see tokenize --help)");
  }
  if (options.out.empty()) {
    refuse("--out is missing: name the token file to write (see tokenize --help)");
  }
  if (options.tokenizer.empty()) {
    options.tokenizer =
        std::all_of(options.paths.begin(), options.paths.end(), IdFile::has_name) ? kIds : kBytes;
  }
  check_id_options(options);
  complete_held_out(options);
  for (const std::vector<Path>* inputs : {&options.paths, &options.masks}) {
    for (const Path& input : *inputs) {
      for (const Path* output : {&options.out, &options.held_out_path}) {
        // a folder is said to be one where it is opened for writing
        if (!output->empty() && is_same_place(input, *output) &&
            !std::filesystem::is_directory(input)) {
          refuse(fmt::format("{} would be written over, but is to be read", input.string()));
        }
      }
    }
  }
}

// ---- what is printed

std::string count_of(Index count, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", grouped(count), count == 1 ? one : many);
}

std::string megabytes(Index bytes) {
  constexpr double kMegabyte = 1e6;
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) / kMegabyte);
}

// A line on a terminal that says how far it is.
class ProgressLine {
 public:
  void show(Index files, Index all_files, Index bytes) {
    constexpr auto kInterval = std::chrono::milliseconds(200);
    const auto now = std::chrono::steady_clock::now();
    if (is_terminal_ && now - last_ >= kInterval) {
      last_ = now;
      shown_ = true;
      std::cerr << fmt::format("\r\x1b[K{} of {} files, {}", grouped(files), grouped(all_files),
                               megabytes(bytes))
                << std::flush;
    }
  }
  ~ProgressLine() {
    if (shown_) {
      std::cerr << "\r\x1b[K" << std::flush;
    }
  }
  ProgressLine() = default;
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

 private:
  bool is_terminal_ = ::isatty(STDERR_FILENO) != 0;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

void print_left_out(const LeftOut& left_out) {
  for (const LeftOut::Row& row : left_out.rows()) {
    std::cout << fmt::format("skipped {} ({}), the first {}\n",
                             count_of(row.count, "file", "files"), row.reason, row.first.string());
  }
}

// ---- outputs

// The token file, and the one for held-out documents.
class Outputs {
 public:
  Outputs(const Options& options, const TokenFileInfo& info, const std::string& model,
          TokenFileWriter::Mask mask)
      : share_(options.held_out), all_(options.out, info, model, mask) {
    if (share_ > 0) {
      held_out_.emplace(options.held_out_path, info, model, mask);
    }
  }

  /// Where a document with this hash belongs.
  TokenFileWriter& choose(std::uint64_t hash) {
    constexpr unsigned kUnusedBits = 11;  // a double holds 53
    const double fraction = static_cast<double>(hash >> kUnusedBits) * 0x1p-53;
    return held_out_ && fraction < share_ ? *held_out_ : all_;
  }

  /// Renames both into place and prints what they hold.
  void commit(std::string_view hint_on_documents) {
    if (held_out_ && (held_out_->token_count() == 0 || all_.token_count() == 0)) {
      throw ConfigError(
          fmt::format("--held-out {} of {} leaves no document on one side; {}", share_,
                      count_of(held_out_->document_count() + all_.document_count(), "document",
                               "documents"),
                      hint_on_documents),
          TESSERA_HERE);
    }
    if (held_out_) {
      held_out_->commit();
    }
    all_.commit();
    print(all_);
    if (held_out_) {
      print(*held_out_);
    }
  }

  [[nodiscard]] bool is_empty() const {
    return all_.token_count() == 0 && (!held_out_ || held_out_->token_count() == 0);
  }

 private:
  static void print(const TokenFileWriter& writer);

  double share_;
  TokenFileWriter all_;
  std::optional<TokenFileWriter> held_out_;
};

void print_contents(const TokenFile& file) {
  const TokenFileInfo& info = file.info();
  std::cout << fmt::format("{}: {}, {}, vocabulary {}", file.path().string(),
                           count_of(file.token_count(), "token", "tokens"),
                           count_of(file.document_count(), "document", "documents"),
                           grouped(info.vocab_size));
  if (info.source_bytes > 0) {
    std::cout << fmt::format(", {:.2f} bytes a token", static_cast<double>(info.source_bytes) /
                                                           static_cast<double>(file.token_count()));
  }
  std::cout << (file.has_mask() ? ", with a mask of targets\n" : "\n");
}

// Opens what was written: what is printed is what train will see.
void Outputs::print(const TokenFileWriter& writer) {
  print_contents(TokenFile(writer.path()));
}

std::string source_of(const std::vector<Path>& paths) {
  constexpr std::size_t kMaxNamed = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(paths.size(), kMaxNamed); ++i) {
    text += (i == 0 ? "" : ", ") + paths[i].string();
  }
  return paths.size() > kMaxNamed ? fmt::format("{} and {} more", text, paths.size() - kMaxNamed)
                                  : text;
}

// ---- text

// Encodes pieces of text on several threads and writes them in their order.
class TextEncoder {
 public:
  TextEncoder(const Tokenizer& tokenizer, unsigned threads)
      : tokenizer_(tokenizer), threads_(threads) {}

  /// `text` is a piece of a document of `writer`; the first one, and the last one, of it.
  void add(std::string_view text, TokenFileWriter& writer, bool is_first) {
    pieces_.push_back({std::string(text), {}, &writer, is_first, false});
    bytes_ += text.size();
  }
  void end_document() {
    pieces_.back().is_last = true;
    if (bytes_ >= kBatchBytes || pieces_.size() >= kBatchPieces) {
      flush();
    }
  }
  /// Between pieces of one long document.
  void make_room() {
    if (bytes_ >= kBatchBytes) {
      flush();
    }
  }

  void flush() {
    encode();
    for (const Piece& piece : pieces_) {
      if (piece.is_first) {
        piece.writer->begin_document();
      }
      piece.writer->append(piece.ids);
      piece.writer->add_source_bytes(static_cast<Index>(piece.text.size()));
      count_losses(piece);
      if (piece.is_last && tokenizer_.end_token() >= 0) {
        const auto end = static_cast<std::uint32_t>(tokenizer_.end_token());
        piece.writer->append({&end, 1});
      }
    }
    pieces_.clear();
    bytes_ = 0;
  }

  /// What of the text the tokens do not hold.
  void print_losses() const {
    if (unknown_tokens_ > 0) {
      std::cout << fmt::format("warning: {} in {}: the tokenizer has nothing for that text and "
                               "writes its unknown token, id {}\n",
                               count_of(unknown_tokens_, "unknown token", "unknown tokens"),
                               count_of(unknown_documents_, "document", "documents"),
                               tokenizer_.unknown_token());
    }
    if (lost_line_ends_ > 0) {
      std::cout << fmt::format("warning: {} lost: this SentencePiece model does not keep them, so "
                               "lines run together\n",
                               count_of(lost_line_ends_, "line end is", "line ends are"));
    }
  }

 private:
  struct Piece {
    std::string text;
    std::vector<std::uint32_t> ids;
    TokenFileWriter* writer;
    bool is_first;
    bool is_last;
  };

  void count_losses(const Piece& piece) {
    const Index unknown = std::count_if(
        piece.ids.begin(), piece.ids.end(),
        [this](std::uint32_t id) { return static_cast<Index>(id) == tokenizer_.unknown_token(); });
    unknown_tokens_ += unknown;
    unknown_documents_ += unknown > 0 ? 1 : 0;
    if (!tokenizer_.keeps_line_ends()) {
      lost_line_ends_ += std::count(piece.text.begin(), piece.text.end(), '\n');
    }
  }

  void encode() {
    std::atomic<std::size_t> next = 0;
    std::mutex mutex;
    std::exception_ptr failure;
    const auto work = [&] {
      try {
        for (std::size_t i = next++; i < pieces_.size(); i = next++) {
          tokenizer_.encode(pieces_[i].text, pieces_[i].ids);
        }
      } catch (...) {
        const std::lock_guard lock(mutex);
        failure = std::current_exception();
      }
    };
    std::vector<std::jthread> others;
    for (unsigned i = 1; i < threads_ && i < pieces_.size(); ++i) {
      others.emplace_back(work);
    }
    work();
    others.clear();  // joins
    if (failure) {
      std::rethrow_exception(failure);
    }
  }

  const Tokenizer& tokenizer_;
  unsigned threads_;
  std::vector<Piece> pieces_;
  std::size_t bytes_ = 0;
  Index unknown_tokens_ = 0;
  Index unknown_documents_ = 0;
  Index lost_line_ends_ = 0;
};

std::string read_model(const Path& path) {
  constexpr std::uint64_t kMaxModelBytes = std::uint64_t{128} << 20U;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw ConfigError(fmt::format("--tokenizer {}: there is no such file; give bytes, ids or a "
                                  "SentencePiece model",
                                  path.string()),
                      TESSERA_HERE);
  }
  const FileDescriptor file = open_to_read(path);
  const std::uint64_t bytes = size_of(file, path);
  if (bytes == 0 || bytes > kMaxModelBytes) {
    throw FormatError(
        fmt::format("{} is no SentencePiece model: it has {} bytes (1 to {} are read)",
                    path.string(), bytes, kMaxModelBytes),
        TESSERA_HERE);
  }
  std::string model(bytes, '\0');
  model.resize(read_at(file, model.data(), model.size(), 0, path));
  return model;
}

// Hands the text of all inputs over to the encoder, and counts what is no text.
class TextReader {
 public:
  TextReader(const Options& options, const Tokenizer& tokenizer, TextEncoder& encoder,
             Outputs& outputs)
      : options_(options),
        tokenizer_(tokenizer),
        encoder_(encoder),
        outputs_(outputs),
        inputs_(list_files(options.paths)) {
    for (const InputFiles::File& file : inputs_.files) {
      if (file.was_named) {
        refuse_other_kind(file.path);  // before hours of work
      }
    }
  }

  void read_all() {
    const auto count = static_cast<Index>(inputs_.files.size());
    {
      ProgressLine progress;
      Index done = 0;
      for (const InputFiles::File& file : inputs_.files) {
        progress.show(done++, count, bytes_);
        read(file);
      }
      encoder_.flush();
    }
    if (outputs_.is_empty()) {
      refuse_nothing();
    }
  }

  void print() const {
    std::cout << fmt::format("read {} ({})\n", count_of(read_, "file", "files"), megabytes(bytes_));
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
    const FileDescriptor file = open_to_read(path);
    std::string begin(kTextKindBytes, '\0');
    begin.resize(read_at(file, begin.data(), begin.size(), 0, path));
    return text_kind(begin);
  }

  void read(const InputFiles::File& file) {
    try {
      if (const std::string_view kind = kind_of(file.path); !kind.empty()) {
        inputs_.left_out.add(kind, file.path);
        return;
      }
      read_text_of(file.path, scan_text(file.path));
    } catch (const ConfigError&) {  // it cannot be opened
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
    const std::size_t most = tokenizer_.max_document_bytes();
    if (most != 0 && static_cast<std::size_t>(scan.bytes) > most) {
      throw FormatError(
          fmt::format("{} has {}; a SentencePiece model encodes a document as a whole, which takes "
                      "much memory: at most {}. Split it into a file for each document",
                      path.string(), megabytes(scan.bytes), megabytes(static_cast<Index>(most))),
          TESSERA_HERE);
    }
    TokenFileWriter& writer = outputs_.choose(scan.hash);
    bool is_first = true;
    // one piece more than the document: its end is seen in the same call
    read_text(path, scan, most == 0 ? kPieceBytes : most + kPieceBytes,
              [&](std::string_view piece) {
                encoder_.make_room();
                encoder_.add(piece, writer, is_first);
                is_first = false;
              });
    encoder_.end_document();
    bytes_ += scan.bytes;
    ++read_;
  }

  [[noreturn]] void refuse_nothing() const {
    std::string left_out;
    for (const LeftOut::Row& row : inputs_.left_out.rows()) {
      left_out += fmt::format(", {} of them {}", row.count, row.reason);
    }
    const bool has_ids =
        std::any_of(inputs_.files.begin(), inputs_.files.end(),
                    [](const InputFiles::File& file) { return IdFile::has_name(file.path); });
    refuse(fmt::format("no text in {}: {}{}{}", source_of(options_.paths),
                       count_of(read_ + inputs_.left_out.count(), "file", "files"), left_out,
                       has_ids ? " (--tokenizer ids reads .npy and .bin files)" : ""));
  }

  const Options& options_;
  const Tokenizer& tokenizer_;
  TextEncoder& encoder_;
  Outputs& outputs_;
  InputFiles inputs_;
  Index read_ = 0;
  Index bytes_ = 0;
};

void tokenize_text(const Options& options) {
  std::string model;
  std::unique_ptr<Tokenizer> tokenizer;
  TokenFileInfo info;
  info.source = source_of(options.paths);
  if (options.tokenizer == kBytes) {
    tokenizer = make_byte_tokenizer();
    info.tokenizer = kBytes;
  } else {
    model = read_model(options.tokenizer);
    tokenizer = make_sentencepiece_tokenizer(model, options.tokenizer);
    info.tokenizer = "sentencepiece";
    info.tokenizer_name = Path(options.tokenizer).filename().string();
  }
  info.vocab_size = tokenizer->vocab_size();
  info.end_token = tokenizer->end_token();
  Outputs outputs(options, info, model, TokenFileWriter::Mask::absent);

  TextEncoder encoder(*tokenizer, options.tokenizer == kBytes ? 1 : options.threads);
  TextReader reader(options, *tokenizer, encoder, outputs);
  reader.read_all();
  outputs.commit("give a larger share or more files: each file is one document");
  reader.print();
  encoder.print_losses();
}

// ---- ready ids

// Ids of a file and, if there are masks, its mask, block by block.
class IdReader {
 public:
  IdReader(const Path& ids, const Path* mask) : ids_(ids) {
    if (mask != nullptr) {
      mask_.emplace(*mask);
      if (mask_->count() != ids_.count()) {
        throw FormatError(fmt::format("{} has {} values, but {} has {} ids", mask->string(),
                                      mask_->count(), ids.string(), ids_.count()),
                          TESSERA_HERE);
      }
    }
  }

  using TakeBlock =
      std::function<void(std::span<const std::uint32_t> ids, std::span<const std::uint8_t> mask)>;
  /// Hands over all blocks; every id is below `vocab`, every mask value 0 or 1.
  void read(Index vocab, const TakeBlock& take) {
    std::vector<std::int64_t> numbers;
    std::vector<std::uint32_t> ids;
    std::vector<std::uint8_t> mask;
    for (Index begin = 0; begin < ids_.count(); begin += static_cast<Index>(kBlockIds)) {
      numbers.resize(
          static_cast<std::size_t>(std::min(static_cast<Index>(kBlockIds), ids_.count() - begin)));
      ids_.read(begin, numbers);
      check(ids_, begin, numbers, vocab, "id", "outside the vocabulary");
      ids.assign(numbers.begin(), numbers.end());
      if (mask_) {
        mask_->read(begin, numbers);
        check(*mask_, begin, numbers, 2, "mask", "neither 0 nor 1");
        mask.assign(numbers.begin(), numbers.end());
      }
      take(ids, mask);
    }
  }
  [[nodiscard]] Index count() const { return ids_.count(); }
  /// Numbers of this file's type cannot reach `vocab`: larger ids were cut to their low bits when
  /// it was written, and look like others.
  void require_room_for(Index vocab) const {
    if (vocab > ids_.id_limit()) {
      refuse(fmt::format("{} holds ids of {} bits, up to {}, and --vocab is {}: larger ids cannot "
                         "be in it as they were; write it with a wider type (numpy: "
                         "ids.astype('uint32')), or give --vocab {} if no id is larger",
                         ids_.path().string(), ids_.bits(), grouped(ids_.id_limit() - 1),
                         grouped(vocab), ids_.id_limit()));
    }
  }

 private:
  static void check(const IdFile& file, Index begin, const std::vector<std::int64_t>& numbers,
                    Index limit, std::string_view what, std::string_view complaint) {
    const auto bad = std::find_if(numbers.begin(), numbers.end(), [limit](std::int64_t number) {
      return number < 0 || number >= limit;
    });
    if (bad != numbers.end()) {
      throw FormatError(
          fmt::format("token {} of {} has the {} {}, {} (0 to {})", begin + (bad - numbers.begin()),
                      file.path().string(), what, *bad, complaint, limit - 1),
          TESSERA_HERE);
    }
  }

  IdFile ids_;
  std::optional<IdFile> mask_;
};

// The files of ids, and their masks if there are any.
struct IdInputs {
  std::vector<Path> files;
  std::vector<Path> masks;
  LeftOut left_out;

  explicit IdInputs(const Options& options) : masks(options.masks) {
    InputFiles found = list_files(options.paths);
    left_out = std::move(found.left_out);
    for (const InputFiles::File& file : found.files) {
      if (file.was_named || IdFile::has_name(file.path)) {
        files.push_back(file.path);
      } else {
        left_out.add("neither .npy nor .bin", file.path);
      }
    }
    if (!masks.empty() && masks.size() != files.size()) {
      refuse(
          fmt::format("{} for {}: give one --mask for each PATH",
                      count_of(static_cast<Index>(masks.size()), "mask", "masks"),
                      count_of(static_cast<Index>(files.size()), "file of ids", "files of ids")));
    }
  }
  [[nodiscard]] IdReader open(std::size_t i) const {
    return {files[i], masks.empty() ? nullptr : &masks[i]};
  }
};

// Writes ids as documents, each to the output that its number chooses.
class IdDocuments {
 public:
  IdDocuments(Outputs& outputs, Index end_token) : outputs_(outputs), end_token_(end_token) {}

  void begin() {
    ContentHash number;
    number.add(fmt::format("document {}", documents_++));
    writer_ = &outputs_.choose(number.word());
    writer_->begin_document();
  }
  void add(std::span<const std::uint32_t> ids, std::span<const std::uint8_t> mask) {
    while (!ids.empty()) {
      const auto end = std::find_if(ids.begin(), ids.end(), [this](std::uint32_t id) {
        return static_cast<Index>(id) == end_token_;
      });
      const bool ends = end != ids.end();
      const auto length = static_cast<std::size_t>(end - ids.begin()) + (ends ? 1 : 0);
      const std::size_t mask_length = mask.empty() ? 0 : length;
      writer_->append(ids.first(length), mask.first(mask_length));
      ids = ids.subspan(length);
      mask = mask.subspan(mask_length);
      if (ends) {
        begin();
      }
    }
  }

 private:
  Outputs& outputs_;
  Index end_token_;
  std::uint64_t documents_ = 0;
  TokenFileWriter* writer_ = nullptr;
};

void tokenize_ids(const Options& options) {
  const IdInputs inputs(options);
  // everything is checked before anything is written; the highest id gives the vocabulary
  Index count = 0;
  std::uint32_t highest = 0;
  for (std::size_t i = 0; i < inputs.files.size(); ++i) {
    IdReader reader = inputs.open(i);
    reader.require_room_for(options.vocab.value_or(1));
    reader.read(options.vocab.value_or(kMaxVocab), [&](std::span<const std::uint32_t> ids, auto) {
      highest = std::max(highest, *std::max_element(ids.begin(), ids.end()));
    });
    count += reader.count();
  }
  if (count == 0) {
    refuse(fmt::format("no token ids in {}", source_of(options.paths)));
  }
  TokenFileInfo info;
  info.tokenizer = kIds;
  info.vocab_size = options.vocab.value_or(Index{highest} + 1);
  info.end_token = options.end_token.value_or(-1);
  info.source = source_of(options.paths);
  if (info.end_token >= info.vocab_size) {
    refuse(fmt::format("--end-token {} is above the highest id, {}: give --vocab N if it is right",
                       info.end_token, highest));
  }
  Outputs outputs(
      options, info, "",
      inputs.masks.empty() ? TokenFileWriter::Mask::absent : TokenFileWriter::Mask::present);
  IdDocuments documents(outputs, info.end_token);
  for (std::size_t i = 0; i < inputs.files.size(); ++i) {
    documents.begin();
    inputs.open(i).read(info.vocab_size,
                        [&](std::span<const std::uint32_t> ids,
                            std::span<const std::uint8_t> mask) { documents.add(ids, mask); });
  }
  outputs.commit("documents of ready ids end with --end-token ID");
  std::cout << (options.vocab ? fmt::format("the highest id is {}, of a vocabulary of {}\n",
                                            grouped(highest), grouped(info.vocab_size))
                              : std::string("vocabulary: the highest id + 1; --vocab N sets it\n"));
  print_left_out(inputs.left_out);
}

// ---- check

void check_files(const Options& options) {
  if (options.paths.empty()) {
    throw ConfigError("--check names no token file", TESSERA_HERE);
  }
  for (const Path& path : options.paths) {
    const TokenFile file(path);
    file.verify_content();
    print_contents(file);
    std::cout << fmt::format("  tokenizer {}{}{}, source {}, content hash {}: as written\n",
                             file.info().tokenizer, file.info().tokenizer_name.empty() ? "" : " ",
                             file.info().tokenizer_name, file.info().source, file.content_hash());
  }
}

int tokenize(int argc, char** argv) {
  std::optional<Options> options = parse_options(argc, argv);
  if (!options) {
    return 0;
  }
  if (options->check) {
    check_files(*options);
    return 0;
  }
  complete(*options);
  const auto start = std::chrono::steady_clock::now();
  if (options->tokenizer == kIds) {
    tokenize_ids(*options);
  } else {
    tokenize_text(*options);
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::cout << fmt::format("took {:.1f} s\n", elapsed.count());
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::run_program("tokenize", [&] { return tessera::tokenize(argc, argv); });
}
