#include "jobs/generate/options.h"

#include <algorithm>
#include <limits>

#include <boost/program_options.hpp>
#include <fmt/format.h>

#include "jobs/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/quantity.h"
#include "kernels/device/cpu/threads.h"
#include "kernels/device/device_backend.h"

namespace tessera::generation {
namespace {

namespace po = boost::program_options;

constexpr const char* kUsage =
    R"(generate RUN_OR_STEP --prompt TEXT [options]
    continues TEXT with the newest complete step of a run, or with the step given. A folder in
    Hugging Face's form (config.json and safetensors) is taken too.
generate RUN_OR_STEP --chat FORMAT [--system TEXT] [options]
    answers as the assistant of a chat: each line of the terminal, or of stdin, is a turn, until
    its end (Ctrl-D). With --prompt TEXT that alone is answered.
generate RUN_OR_STEP_OR_PEFT_FOLDER --base MODEL ...
    the same with adapters (train --lora, or PEFT's) beside the model that they were trained with, a
    Hugging Face folder, a run or a step.

)";

std::vector<std::int32_t> parse_ids(const std::string& text) {
  std::vector<std::int32_t> ids;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const Index id = parse_count(text.substr(begin, end - begin),
                                 {0, std::numeric_limits<std::int32_t>::max()}, "--prompt-ids");
    ids.push_back(static_cast<std::int32_t>(id));
    begin = end + 1;
  }
  return ids;
}

Device parse_device(const std::string& text, Index threads) {
  if (text == "cpu") {
    cpu::set_threads(static_cast<int>(threads));
    return {};
  }
  if (text != "cuda") {
    refuse(fmt::format("--device '{}': choose cpu, cuda", text));
  }
  const Device device = {DeviceKind::cuda, 0};
  if (device_count(DeviceKind::cuda) == 0) {
    throw DeviceError("--device cuda: this machine has no GPU that CUDA can use", TESSERA_HERE);
  }
  use_device(device);
  return device;
}

DType parse_precision(const std::string& text, Device device) {
  const bool on_cpu = device.kind == DeviceKind::cpu;
  if (text == "auto") {
    return on_cpu ? DType::f32 : DType::bf16;
  }
  if (text == "bf16" && on_cpu) {
    refuse("--precision bf16 needs --device cuda: the CPU computes in f32");
  }
  if (text != "f32" && text != "bf16") {
    refuse(fmt::format("--precision '{}': choose auto, f32, bf16", text));
  }
  return text == "f32" ? DType::f32 : DType::bf16;
}

po::options_description described() {
  const auto text = [](const char* standard, const char* shown) {
    return po::value<std::string>()->default_value(standard)->value_name(shown);
  };
  const auto word = [](const char* shown) { return po::value<std::string>()->value_name(shown); };
  po::options_description options = option_group("Options");
  options.add_options()("base", word("MODEL"), "the model that adapters belong to")(
      "prompt", word("TEXT"), "the text to continue, or with --chat to answer")(
      "chat", word("auto|NAME|FILE"),
      "the format of chats that the model was trained with, as in tokenize --chat; auto: by the "
      "chat template beside its tokenizer")("system", word("TEXT"),
                                            "the system prompt that the chat begins with")(
      "prompt-ids", word("ID,ID,..."), "token ids in its place; ids are printed, too")(
      "max-tokens", word("N"),
      "tokens to write at most; default 128, for an answer of a chat 1024")(
      "temperature", text("0.8", "T"), "0: always the likeliest token")(
      "top-p", text("0.95", "P"), "of the likeliest tokens, as few as have this probability")(
      "seed", text("0", "N"), "the same seed writes the same text")(
      "samples", text("1", "N"), "texts to write, with seeds N, N + 1, ...")(
      "tokenizer", word("bytes|PATH"),
      "bytes, a Hugging Face folder, a tokenizer.json, a file in tiktoken's form or a "
      "SentencePiece "
      "model; default: the one the run was trained with")(
      "tokenizer-kind", word("NAME"),
      "whose pattern and special tokens go with a file in tiktoken's form that is not known: "
      "tiktoken-llama3, tiktoken-llama4 or tiktoken-qwen")(
      "allow-tokenizer-mismatch", switch_value(),
      "take --tokenizer although the model was trained with another")("ids", switch_value(),
                                                                      "print token ids")(
      "no-cache", switch_value(),
      "compute every token from the first one on again: bit-identical, for tests")(
      "device", text("cpu", "cpu|cuda"), "where to compute")(
      "precision", text("auto", "auto|f32|bf16"), "auto: bf16 on cuda, f32 on cpu")(
      "threads", text("1", "N"), "threads of the CPU");
  return options;
}

// Either a text is continued or a chat is held; each has options that the other has not.
void require_one_form(const po::variables_map& given) {
  if (!given.contains("chat")) {
    if (given.contains("prompt") == given.contains("prompt-ids")) {
      refuse("give either --prompt TEXT, --prompt-ids ID,ID,... or --chat FORMAT");
    }
    if (given.contains("system")) {
      refuse("--system goes with --chat");
    }
    return;
  }
  for (const char* name : {"prompt-ids", "ids", "samples"}) {
    if (given.contains(name) && !given[name].defaulted()) {
      refuse(fmt::format("--{} continues texts: leave it or --chat out", name));
    }
  }
}

void read_prompt(const po::variables_map& given, Options& options) {
  options.prompt = text_of(given, "prompt");
  options.chat = text_of(given, "chat");
  options.system = text_of(given, "system");
  if (given.contains("chat") && options.chat.empty()) {
    refuse("--chat is empty: give auto, the name of a format, or its file");
  }
  if (given.contains("prompt") && options.prompt.empty()) {
    refuse("--prompt is empty: give the text to continue");
  }
  if (given.contains("prompt-ids")) {
    options.prompt_ids = parse_ids(text_of(given, "prompt-ids"));
  }
}

void read_tokenizer(const po::variables_map& given, Options& options) {
  options.tokenizer = text_of(given, "tokenizer");
  options.tokenizer_kind = text_of(given, "tokenizer-kind");
  if (!options.tokenizer_kind.empty() &&
      (options.tokenizer.empty() || options.tokenizer == kBytesKind)) {
    refuse("--tokenizer-kind goes with a tokenizer's file (--tokenizer FILE)");
  }
  if (!options.tokenizer_kind.empty() && find_tokenizer_kind(options.tokenizer_kind) == nullptr) {
    refuse(fmt::format("--tokenizer-kind {} is not a kind of tokenizer: tiktoken-llama3, "
                       "tiktoken-llama4 or tiktoken-qwen",
                       options.tokenizer_kind));
  }
  options.on_mismatch = is_on(given, "allow-tokenizer-mismatch") ? OnTokenizerMismatch::report
                                                                 : OnTokenizerMismatch::refuse;
}

GenerationOptions read_generation(const po::variables_map& given) {
  GenerationOptions generation;
  const char* const default_tokens = given.contains("chat") ? "1024" : "128";
  generation.max_tokens =
      parse_count(given.contains("max-tokens") ? text_of(given, "max-tokens") : default_tokens,
                  {1, kMostTokens}, "--max-tokens");
  constexpr double kHottest = 1000;
  generation.sampling.temperature =
      parse_real(text_of(given, "temperature"), {0, kHottest}, "--temperature");
  generation.sampling.top_p = parse_real(text_of(given, "top-p"), {0, 1}, "--top-p");
  if (generation.sampling.top_p == 0) {
    refuse("--top-p 0 leaves no token: give a probability above 0, or --temperature 0");
  }
  generation.sampling.seed =
      static_cast<std::uint64_t>(parse_count(text_of(given, "seed"), {0, kMostSeed}, "--seed"));
  generation.cache = is_on(given, "no-cache") ? KeyCache::rebuild : KeyCache::keep;
  return generation;
}

}  // namespace

void refuse(const std::string& message) {
  throw ConfigError(message, TESSERA_HERE);
}

std::optional<Options> parse_options(int argc, char** argv) {
  const std::optional<CommandLine> line =
      read_command_line(argc, argv, "generate", kUsage, described(), Abbreviations::refused);
  if (!line) {
    return std::nullopt;
  }
  const po::variables_map& given = line->given;
  if (line->words.size() != 1) {
    refuse("give one run or step: generate RUN_OR_STEP --prompt TEXT (generate --help)");
  }
  require_one_form(given);
  Options options;
  options.from = line->words.front();
  options.base = text_of(given, "base");
  read_prompt(given, options);
  read_tokenizer(given, options);
  options.print_ids = is_on(given, "ids") || !options.prompt_ids.empty();
  options.generation = read_generation(given);
  options.samples = parse_count(text_of(given, "samples"), {1, kMostSequences}, "--samples");
  options.device =
      parse_device(text_of(given, "device"),
                   parse_count(text_of(given, "threads"), {1, kMostThreads}, "--threads"));
  options.dtype = parse_precision(text_of(given, "precision"), options.device);
  return options;
}

}  // namespace tessera::generation
