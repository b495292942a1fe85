#include "jobs/tokenize/options.h"

#include <algorithm>
#include <charconv>
#include <thread>

#include <boost/program_options.hpp>
#include <fmt/format.h>

#include "jobs/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/file_status.h"
#include "kernels/base/output_file.h"
#include "kernels/base/quantity.h"
#include "runtime/data/id_file.h"

namespace tessera::tokenize {
namespace {

namespace po = boost::program_options;

constexpr std::string_view kUsage =
    "Usage: tokenize --out FILE.h5 [options] PATH...\n"
    "       tokenize --check FILE.h5...\n\n"
    "Makes a token file for `train --data` out of text files and folders of them, out of JSON\n"
    "Lines (--field, --chat), or out of token ids made elsewhere (.npy with a 1-D array of\n"
    "integers, .bin of llm.c, --raw).\n\n"
    "Each text file is one document. In folders, links are followed, and what is not UTF-8\n"
    "text (or is JSON, an archive, a pointer of git-lfs, a pipe, a link to nothing) is\n"
    "skipped and counted by kind; a file that is named and is of such a kind is refused.\n\n"
    "Tokenizers of Qwen, Llama and others: jobs/guide/pretraining.md.\n\n";

double parse_share(const char* name, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() ||
      !(value > 0 && value < 1)) {
    throw ConfigError(fmt::format("--{} {} must be a number between 0 and 1: the share of the "
                                  "tokens",
                                  name, text),
                      TESSERA_HERE);
  }
  return value;
}

RawIds parse_raw(const std::string& text) {
  if (text.empty()) {
    return RawIds::none;
  }
  if (text != "uint16" && text != "uint32") {
    refuse(fmt::format("--raw {} is neither uint16 nor uint32", text));
  }
  return text == "uint16" ? RawIds::uint16 : RawIds::uint32;
}

ChatLoss parse_loss(const std::string& text) {
  if (text.empty() || text == "assistant") {
    return ChatLoss::assistant;
  }
  if (text != "turn" && text != "all") {
    refuse(fmt::format("--loss {} is not one of assistant, turn and all", text));
  }
  return text == "turn" ? ChatLoss::turn : ChatLoss::all;
}

void check_record_options(const Options& options, bool has_loss, bool has_skip_bad) {
  if (!options.field.empty() && !options.chat.empty()) {
    refuse("--field and --chat exclude each other: records are texts or chats");
  }
  if (has_loss && options.chat.empty()) {
    refuse("--loss goes with chats (--chat)");
  }
  const bool are_records = !options.field.empty() || !options.chat.empty();
  if (has_skip_bad && !are_records) {
    refuse("--skip-bad goes with JSON Lines (--field or --chat)");
  }
  if (options.as_text && are_records) {
    refuse("--as-text takes JSON Lines as plain text: leave it or --field and --chat out");
  }
}

// An option in use that goes with ready ids alone; null: there is none.
const char* option_of_ids(const Options& options) {
  return !options.masks.empty()        ? "mask"
         : options.vocab               ? "vocab"
         : options.end_token           ? "end-token"
         : options.raw != RawIds::none ? "raw"
                                       : nullptr;
}

// An option in use that goes with text alone; null: there is none.
const char* option_of_text(const Options& options) {
  return options.as_text          ? "as-text"
         : !options.field.empty() ? "field"
         : !options.chat.empty()  ? "chat"
                                  : nullptr;
}

void check_id_options(const Options& options) {
  if (options.tokenizer == kIds) {
    if (const char* const given = option_of_text(options); given != nullptr) {
      refuse(fmt::format("--{} goes with text, not with ready ids (--tokenizer ids)", given));
    }
  } else if (const char* const given = option_of_ids(options); given != nullptr) {
    refuse(fmt::format("--{} goes with ready ids (--tokenizer ids), not with --tokenizer {}", given,
                       options.tokenizer));
  }
  if (options.end_token && *options.end_token >= options.vocab.value_or(kMaxVocab)) {
    refuse(fmt::format("--end-token {} is outside the vocabulary", *options.end_token));
  }
}

void check_kind(const Options& options) {
  if (options.tokenizer_kind.empty()) {
    return;
  }
  if (options.tokenizer == kIds || options.tokenizer == kBytes) {
    refuse(fmt::format("--tokenizer-kind goes with a tokenizer's file, not with --tokenizer {}",
                       options.tokenizer));
  }
  std::string names;
  for (const TokenizerKind& kind : tokenizer_kinds()) {
    if (!kind.kept_as.empty()) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", kind.name);
      if (kind.name == options.tokenizer_kind) {
        return;
      }
    }
  }
  refuse(fmt::format("--tokenizer-kind {} is not one of {}", options.tokenizer_kind, names));
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

}  // namespace

std::optional<Options> parse_options(int argc, char** argv) {
  const auto text = [](const char* shown) { return po::value<std::string>()->value_name(shown); };
  po::options_description input = option_group("Input");
  input.add_options()(
      "tokenizer", text("bytes|ids|PATH"),
      "bytes: an id is a byte (vocabulary 256). PATH: a Hugging Face folder, a "
      "tokenizer.json (byte-level BPE), a file in tiktoken's form or a SentencePiece "
      "model; it is kept in the token file. ids: PATHs are .npy or .bin files. "
      "Default: ids if all PATHs end in .npy or .bin, else bytes")(
      "tokenizer-kind", text("NAME"),
      "whose pattern and special tokens go with a file in tiktoken's form that is not known: "
      "tiktoken-llama3, tiktoken-llama4 or tiktoken-qwen")(
      "field", text("NAME"),
      "PATHs are JSON Lines (in folders: files named .jsonl or .ndjson; plain, .gz or .zst): the "
      "text "
      "in this field of a line is a document")("chat", text("auto|NAME|FILE"),
                                               "PATHs are JSON Lines with a chat in each: "
                                               "messages, conversations, or prompt and completion. "
                                               "NAME is a family's format: chatml, qwen2.5, qwen3, "
                                               "qwen3-instruct, llama3, llama3.1 or mistral. "
                                               "auto: by the chat template in the folder of "
                                               "--tokenizer. FILE: JSON of prefixes and suffixes "
                                               "(runtime/data/json_lines.md)")(
      "loss", text("assistant|turn|all"),
      "which tokens of chats are targets: what assistants say and the token that ends it "
      "(default); "
      "turns as TRL's training templates mark them, with the line ends beside; or all")(
      "skip-bad", text("N"),
      "leave out up to N bad lines of JSON Lines, and report them; default: the first is refused")(
      "vocab", text("N"), "vocabulary of ready ids; default: the highest id + 1")(
      "end-token", text("ID"),
      "ready ids: a document ends behind each ID; default: a file is one document. "
      "(Documents of a tokenizer end with its own end token)")(
      "as-text", switch_value(), "take JSON, JSON Lines and other files as text if they are UTF-8")(
      "raw", text("uint16|uint32"), "ready ids: PATHs are ids of this type and nothing else")(
      "mask", po::value<std::vector<std::string>>()->value_name("FILE.npy"),
      "ready ids: 1 where a token counts as a target of training, 0 where not; one file for each "
      "PATH, in their order");
  po::options_description output = option_group("Output");
  output.add_options()(
      "out", text("FILE.h5"),
      "the token file; an older token file of this name is replaced, nothing else is")(
      "held-out", text("SHARE"),
      "keep this share of the tokens (0.01: one in a hundred) for evaluation, in a second file: of "
      "the documents, equal ones always on the same side; of a document that is too large a part "
      "of "
      "all, the end")("held-out-out", text("FILE.h5"),
                      "name of the second file; default: OUT with .held-out");
  po::options_description other = option_group("Other");
  other.add_options()("threads", text("N"),
                      "threads that encode text; default: one a core. The result is the same")(
      "check", switch_value(),
      "check token files against their content hash, and say what is in them");
  input.add(output).add(other);

  // no abbreviations: one that works today may mean something else tomorrow
  const std::optional<CommandLine> line =
      read_command_line(argc, argv, "tokenize", kUsage, input, Abbreviations::refused);
  if (!line) {
    return std::nullopt;
  }
  const po::variables_map& given = line->given;
  Options options;
  options.paths.assign(line->words.begin(), line->words.end());
  if (given.contains("mask")) {
    const auto& masks = given["mask"].as<std::vector<std::string>>();
    options.masks.assign(masks.begin(), masks.end());
  }
  options.raw = parse_raw(text_of(given, "raw"));
  options.field = text_of(given, "field");
  options.chat = text_of(given, "chat");
  options.chat_loss = parse_loss(text_of(given, "loss"));
  if (given.contains("field") && options.field.empty()) {
    refuse("--field is empty: name the field that holds the text");
  }
  if (given.contains("skip-bad")) {
    options.skip_bad = parse_count(text_of(given, "skip-bad"), {0, kMostSteps}, "--skip-bad");
  }
  options.out = text_of(given, "out");
  options.tokenizer = text_of(given, "tokenizer");
  options.tokenizer_kind = text_of(given, "tokenizer-kind");
  options.check = is_on(given, "check");
  options.as_text = is_on(given, "as-text");
  check_record_options(options, given.contains("loss"), given.contains("skip-bad"));
  if (given.contains("vocab")) {
    options.vocab = parse_count(text_of(given, "vocab"), {1, kMaxVocab}, "--vocab");
  }
  if (given.contains("end-token")) {
    options.end_token = parse_count(text_of(given, "end-token"), {0, kMaxVocab - 1}, "--end-token");
  }
  if (given.contains("held-out")) {
    options.held_out = parse_share("held-out", text_of(given, "held-out"));
  }
  options.held_out_path = text_of(given, "held-out-out");
  options.threads = std::max(1U, std::thread::hardware_concurrency());
  if (given.contains("threads")) {
    options.threads = static_cast<unsigned>(
        parse_count(text_of(given, "threads"), {1, kMostThreads}, "--threads"));
  }
  return options;
}

[[noreturn]] void refuse(std::string_view message) {
  throw ConfigError(message, TESSERA_HERE);
}

void complete(Options& options) {
  if (options.paths.empty()) {
    refuse("no PATH to read: give files or folders (see tokenize --help)");
  }
  if (options.out.empty()) {
    refuse("--out is missing: name the token file to write (see tokenize --help)");
  }
  if (options.tokenizer.empty()) {
    if (!options.chat.empty()) {
      refuse(
          "--chat needs --tokenizer with the model's Hugging Face folder, or its tokenizer.json");
    }
    const bool are_ids =
        options.raw != RawIds::none ||
        (options.field.empty() &&
         std::all_of(options.paths.begin(), options.paths.end(), IdFile::has_name));
    options.tokenizer = are_ids ? kIds : kBytes;
  }
  check_id_options(options);
  check_kind(options);
  complete_held_out(options);
  for (const std::vector<Path>* inputs : {&options.paths, &options.masks}) {
    for (const Path& input : *inputs) {
      for (const Path* output : {&options.out, &options.held_out_path}) {
        // a folder is reported as one where it is opened for writing
        if (!output->empty() && is_same_place(input, *output) && !is_folder(input)) {
          refuse(fmt::format("{} would be written over, but is to be read", input.string()));
        }
      }
    }
  }
}

}  // namespace tessera::tokenize
