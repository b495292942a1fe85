// generate: continues a text with the model of a checkpoint. One process, on the CPU or one GPU.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/program_options.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "jobs/command_line.h"
#include "jobs/program.h"
#include "jobs/tokenizer.h"
#include "kernels/base/error.h"
#include "kernels/base/file_status.h"
#include "kernels/base/posix_file.h"
#include "kernels/base/quantity.h"
#include "kernels/device/arena.h"
#include "kernels/device/cpu/threads.h"
#include "kernels/device/device_backend.h"
#include "model/huggingface.h"
#include "model/sampler.h"
#include "model/whole_model.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/checkpoint/run_tokenizer.h"
#include "runtime/data/tokenizer_match.h"

namespace tessera {
namespace {

namespace po = boost::program_options;

constexpr const char* kUsage =
    R"(generate RUN_OR_STEP --prompt TEXT [options]
    continues TEXT with the newest complete step of a run, or with the step given. A folder in
    Hugging Face's form (config.json and safetensors) is taken too.

)";

struct GenerateOptions {
  std::filesystem::path from;
  std::string prompt;
  std::vector<std::int32_t> prompt_ids;
  std::string tokenizer;
  OnTokenizerMismatch on_mismatch = OnTokenizerMismatch::refuse;
  GenerationOptions generation;
  Index samples = 1;
  bool print_ids = false;
  Device device;
  DType dtype = DType::f32;
};

[[noreturn]] void refuse(const std::string& message) {
  throw ConfigError(message, TESSERA_HERE);
}

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
  po::options_description options("Options");
  options.add_options()("prompt", word("TEXT"), "the text to continue")(
      "prompt-ids", word("ID,ID,..."), "token ids in its place; ids are printed, too")(
      "max-tokens", text("128", "N"), "tokens to write at most")("temperature", text("0.8", "T"),
                                                                 "0: always the likeliest token")(
      "top-p", text("0.95", "P"), "of the likeliest tokens, as few as have this probability")(
      "seed", text("0", "N"), "the same seed writes the same text")(
      "samples", text("1", "N"), "texts to write, with seeds N, N + 1, ...")(
      "tokenizer", word("bytes|MODEL"),
      "bytes, or a SentencePiece model file; default: the one the run was trained with")(
      "allow-tokenizer-mismatch", switch_value(),
      "take --tokenizer although the model was trained with another")("ids", switch_value(),
                                                                      "print token ids")(
      "no-cache", switch_value(),
      "compute every token from the first one on again: the same bits, for tests")(
      "device", text("cpu", "cpu|cuda"), "where to compute")(
      "precision", text("auto", "auto|f32|bf16"), "auto: bf16 on cuda, f32 on cpu")(
      "threads", text("1", "N"), "threads of the CPU")("help", "print this")("version",
                                                                             "print the version");
  return options;
}

// Empty if help or the version was asked for and printed.
std::optional<GenerateOptions> parse_options(int argc, char** argv) {
  const std::optional<CommandLine> line =
      read_command_line(argc, argv, "generate", kUsage, described(), Abbreviations::refused);
  if (!line) {
    return std::nullopt;
  }
  const po::variables_map& given = line->given;
  const std::vector<std::string>& words = line->words;
  if (words.size() != 1) {
    refuse("give one run or step: generate RUN_OR_STEP --prompt TEXT (generate --help)");
  }
  const auto text = [&](const char* name) {
    return given.count(name) > 0 ? given[name].as<std::string>() : std::string();
  };
  const auto is_on = [&](const char* name) {
    return given.count(name) > 0 && parse_switch(text(name), std::string("--") + name);
  };
  if ((given.count("prompt") > 0) == (given.count("prompt-ids") > 0)) {
    refuse("give either --prompt TEXT or --prompt-ids ID,ID,...");
  }
  GenerateOptions options;
  options.from = words.front();
  options.prompt = text("prompt");
  if (given.count("prompt") > 0 && options.prompt.empty()) {
    refuse("--prompt is empty: give the text to continue");
  }
  if (given.count("prompt-ids") > 0) {
    options.prompt_ids = parse_ids(text("prompt-ids"));
  }
  options.tokenizer = text("tokenizer");
  options.on_mismatch =
      is_on("allow-tokenizer-mismatch") ? OnTokenizerMismatch::report : OnTokenizerMismatch::refuse;
  options.print_ids = is_on("ids") || !options.prompt_ids.empty();
  options.generation.max_tokens = parse_count(text("max-tokens"), {1, kMostTokens}, "--max-tokens");
  constexpr double kHottest = 1000;
  options.generation.sampling.temperature =
      parse_real(text("temperature"), {0, kHottest}, "--temperature");
  options.generation.sampling.top_p = parse_real(text("top-p"), {0, 1}, "--top-p");
  if (options.generation.sampling.top_p == 0) {
    refuse("--top-p 0 leaves no token: give a probability above 0, or --temperature 0");
  }
  options.generation.sampling.seed =
      static_cast<std::uint64_t>(parse_count(text("seed"), {0, kMostSeed}, "--seed"));
  options.generation.cache = is_on("no-cache") ? KeyCache::rebuild : KeyCache::keep;
  options.samples = parse_count(text("samples"), {1, kMostSequences}, "--samples");
  options.device =
      parse_device(text("device"), parse_count(text("threads"), {1, kMostThreads}, "--threads"));
  options.dtype = parse_precision(text("precision"), options.device);
  return options;
}

void say_passed_over(const StepFolder& step) {
  std::cerr << fmt::format("generate: passing over {}, which is {}: {}\n", step.path.string(),
                           state_name(step.state), step.reason);
}

struct TextTokens {
  std::unique_ptr<Tokenizer> tokenizer;
  Index end_token = -1;
  std::optional<TokenizerFacts> given;  // of --tokenizer
};

// --tokenizer, or what the run keeps. Null: ids of unknown meaning.
TextTokens find_tokenizer(const GenerateOptions& options, const std::filesystem::path& run_folder) {
  TextTokens found;
  if (options.tokenizer == "bytes") {
    found.tokenizer = make_byte_tokenizer();
    found.given = tokenizer_of({.kind = "bytes",
                                .vocab_size = found.tokenizer->vocab_size(),
                                .end_token = -1,
                                .model = {}},
                               "--tokenizer");
  } else if (!options.tokenizer.empty()) {
    const std::string model = read_whole_file(options.tokenizer, kMostTokenizerBytes);
    found.tokenizer = make_sentencepiece_tokenizer(model, options.tokenizer);
    found.given = tokenizer_of({.kind = "sentencepiece",
                                .vocab_size = found.tokenizer->vocab_size(),
                                .end_token = -1,
                                .model = model},
                               fmt::format("--tokenizer {}", options.tokenizer));
  } else if (const auto kept = read_run_tokenizer(run_folder)) {
    if (kept->kind == "bytes") {
      found.tokenizer = make_byte_tokenizer();
    } else if (kept->kind == "sentencepiece") {
      found.tokenizer =
          make_sentencepiece_tokenizer(kept->model, (run_folder / "tokenizer.model").string());
    }
    if (kept->end_token >= 0) {
      found.end_token = kept->end_token;
      return found;
    }
  } else if (path_exists(run_folder / "tokenizer.model")) {  // Hugging Face's
    const std::filesystem::path file = run_folder / "tokenizer.model";
    found.tokenizer =
        make_sentencepiece_tokenizer(read_whole_file(file, kMostTokenizerBytes), file.string());
  }
  if (found.tokenizer != nullptr) {
    found.end_token = found.tokenizer->end_token();
  }
  return found;
}

struct LoadedModel {
  ModelConfig config;
  WholeModel::Source source;
  std::filesystem::path run_folder;  // where a tokenizer may lie
};

// Refuses a tokenizer that is not the model's, or says that it is not. What lies beside the weights
// is taken to be theirs.
void compare_tokenizer(const GenerateOptions& options, const TextTokens& tokens,
                       const LoadedModel& loaded) {
  TokenizerCheck check(options.on_mismatch);
  if (tokens.given) {
    const auto own = tokenizer_of_folder(loaded.run_folder, options.from.string());
    if (own) {
      check.compare(*tokens.given, *own);
    }
    if (!own || own->kind == "ids") {
      check.compare_vocabulary(*tokens.given, loaded.config.vocab_size);
    }
  }
  for (const std::string& remark : check.remarks()) {
    std::cerr << fmt::format("generate: {}\n", remark);
  }
}

// Prints text as it grows, whole characters of UTF-8 only until the end.
class Printer {
 public:
  explicit Printer(const Tokenizer& tokenizer)
      : tokenizer_(tokenizer), terminal_(isatty(STDOUT_FILENO) == 1) {}

  void add(std::int32_t id) {
    ids_.push_back(id);
    print(false);
  }
  void finish() {
    print(true);
    std::cout << "\n";
  }

 private:
  void print(bool all) {
    const std::string text = tokenizer_.decode(ids_);
    std::size_t end = text.size();
    constexpr std::size_t kLongestCharacter = 4;
    for (std::size_t back = 1; !all && back <= std::min(kLongestCharacter, text.size()); ++back) {
      const auto byte = static_cast<unsigned char>(text[text.size() - back]);
      if (byte >= 0xC0U) {  // first byte of a character that may not be complete yet
        end = text.size() - back;
        break;
      }
      if (byte < 0x80U) {
        break;
      }
    }
    if (end > shown_) {
      const std::string part = text.substr(shown_, end - shown_);
      std::cout << (terminal_ ? terminal_text(part) : part) << std::flush;
      shown_ = end;
    }
  }

  const Tokenizer& tokenizer_;
  bool terminal_;
  std::vector<std::int32_t> ids_;
  std::size_t shown_ = 0;
};

// Its source reads from `reader`.
LoadedModel model_of(CheckpointReader& reader) {
  if (reader.info().nonfinite_params > 0) {
    throw FormatError(fmt::format("{} parameters of {} are not finite: take an earlier step",
                                  reader.info().nonfinite_params, reader.folder().string()),
                      TESSERA_HERE);
  }
  const ModelConfig config =
      parse_config_json(reader.info().config_json, (reader.folder() / kManifestName).string());
  const ParamLayout layout(config);
  return {config,
          [&reader, layout](UnitId unit, std::span<float> values) {
            reader.read(CheckpointArray::master, layout.unit(unit).name, 0, values);
          },
          run_folder_of(reader.folder())};
}

// The prompt's ids, checked against the model.
std::vector<std::int32_t> prompt_of(const GenerateOptions& options, const Tokenizer* tokenizer,
                                    const ModelConfig& config) {
  std::vector<std::int32_t> ids = options.prompt_ids;
  if (ids.empty()) {
    if (tokenizer == nullptr) {
      refuse(fmt::format("{} has no tokenizer of its own: give --tokenizer bytes, --tokenizer with "
                         "a SentencePiece model, or --prompt-ids",
                         options.from.string()));
    }
    std::vector<std::uint32_t> encoded;
    tokenizer->encode(options.prompt, encoded);
    ids.assign(encoded.begin(), encoded.end());
  }
  if (ids.empty()) {
    refuse("--prompt has no tokens: give a text that the tokenizer knows");
  }
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= config.vocab_size) {
      refuse(
          fmt::format("--prompt-ids: {} is outside the model's vocabulary of {} tokens (0 to {})",
                      id, config.vocab_size, config.vocab_size - 1));
    }
  }
  const Index needed = std::ssize(ids) + options.generation.max_tokens;
  if (needed > config.max_position) {
    refuse(fmt::format("the prompt has {} tokens and --max-tokens is {}: together more than the "
                       "model's {} positions",
                       ids.size(), options.generation.max_tokens, config.max_position));
  }
  return ids;
}

void generate_texts(GenerateOptions options, const LoadedModel& loaded) {
  const ModelConfig& config = loaded.config;
  const TextTokens tokens = find_tokenizer(options, loaded.run_folder);
  compare_tokenizer(options, tokens, loaded);
  options.generation.vocab = config.vocab_size;
  if (tokens.tokenizer != nullptr) {
    if (tokens.tokenizer->vocab_size() > config.vocab_size) {
      refuse(fmt::format("the tokenizer has {} ids and the model {}: it is not the one that this "
                         "model was trained with",
                         tokens.tokenizer->vocab_size(), config.vocab_size));
    }
    options.generation.vocab = tokens.tokenizer->vocab_size();
  }
  options.generation.end_token = static_cast<std::int32_t>(tokens.end_token);
  const std::vector<std::int32_t> prompt = prompt_of(options, tokens.tokenizer.get(), config);

  const ParamLayout layout(config);
  Arena arena(options.device, ArenaMode::allocate);
  Stream stream(options.device, StreamPriority::normal, "compute");
  WholeModel model(layout, options.dtype, loaded.source, arena, stream);
  Decoder decoder(kernel_table(options.device.kind), config, layout,
                  std::ssize(prompt) + options.generation.max_tokens, options.dtype, arena);
  for (Index sample = 0; sample < options.samples; ++sample) {
    if (options.print_ids || tokens.tokenizer == nullptr) {
      const char* separator = "";
      generate(decoder, model, stream, prompt, options.generation, [&](std::int32_t id) {
        std::cout << separator << id << std::flush;
        separator = ",";
        return std::cout.good();  // nobody reads any more: run_program says so
      });
      std::cout << "\n";
    } else {
      Printer printer(*tokens.tokenizer);
      std::for_each(prompt.begin(), prompt.end(), [&](std::int32_t id) { printer.add(id); });
      generate(decoder, model, stream, prompt, options.generation, [&](std::int32_t id) {
        printer.add(id);
        return std::cout.good();
      });
      printer.finish();
    }
    ++options.generation.sampling.seed;
  }
}

void generate_from(const GenerateOptions& options) {
  if (is_there(options.from / "config.json")) {
    const HuggingFaceFolder folder(options.from);
    generate_texts(options, {folder.config(),
                             [&folder](UnitId unit, std::span<float> values) {
                               folder.read_unit(unit, 0, values);
                             },
                             options.from});
    return;
  }
  // Weights are read, and checked, before a word is written.
  with_newest_step(options.from, say_passed_over,
                   [&](CheckpointReader& reader) { generate_texts(options, model_of(reader)); });
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::run_program("generate", [&] {
    if (const auto options = tessera::parse_options(argc, argv)) {
      tessera::generate_from(*options);
    }
    return 0;
  });
}
