// generate: continues a text with the model of a checkpoint. One process, on the CPU or one GPU.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "jobs/generate/options.h"
#include "jobs/program.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/device/arena.h"
#include "kernels/device/device_backend.h"
#include "model/huggingface.h"
#include "model/sampler.h"
#include "model/tokenizer/kinds.h"
#include "model/tokenizer/terminal_text.h"
#include "model/whole_model.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/checkpoint/run_tokenizer.h"
#include "runtime/data/tokenizer_match.h"
#include "runtime/run/training_scratch.h"

namespace tessera::generation {
namespace {

void say_passed_over(const StepFolder& step) {
  std::cerr << fmt::format("generate: passing over {}, which is {}: {}\n", step.path.string(),
                           state_name(step.state), step.reason);
}

struct TextTokens {
  std::unique_ptr<Tokenizer> tokenizer;
  Index end_token = -1;                 // of the data that the model was trained on
  std::optional<TokenizerFacts> given;  // of --tokenizer
};

// --tokenizer, or what the run keeps. Null: ids of unknown meaning.
TextTokens find_tokenizer(const Options& options, const std::filesystem::path& run_folder) {
  TextTokens found;
  if (!options.tokenizer.empty()) {
    const TokenizerFiles files = read_tokenizer_files(options.tokenizer, options.tokenizer_kind);
    found.tokenizer = make_tokenizer(files, options.tokenizer);
    found.given =
        tokenizer_of({.kind = files.kind,
                      .vocab_size = found.tokenizer->vocab_size(),
                      .end_token = -1,
                      .model = files.content},
                     files.kind == kBytesKind ? "--tokenizer"
                                              : fmt::format("--tokenizer {}", options.tokenizer));
  } else if (const auto kept = read_run_tokenizer(run_folder)) {
    if (kept->kind != kIdsKind) {
      found.tokenizer =
          make_tokenizer(files_of(*kept), fmt::format("the tokenizer of {}", run_folder.string()));
    }
    found.end_token = kept->end_token;
  } else if (has_tokenizer(run_folder)) {  // Hugging Face's
    found.tokenizer = make_tokenizer(read_tokenizer_files(run_folder, options.tokenizer_kind),
                                     run_folder.string());
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
void compare_tokenizer(const Options& options, const TextTokens& tokens,
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
  for (const std::string& note : check.notes()) {
    std::cerr << fmt::format("generate: {}\n", note);
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
            reader.read(StateArray::master, layout.unit(unit).name, 0, values);
          },
          run_folder_of(reader.folder())};
}

[[noreturn]] void refuse_text(const Options& options) {
  refuse(fmt::format("{} has no tokenizer of its own: give --tokenizer with bytes, a Hugging "
                     "Face folder, a tokenizer.json, or another tokenizer's file, or "
                     "--prompt-ids",
                     options.from.string()));
}

// The prompt's ids, checked against the model.
std::vector<std::int32_t> prompt_of(const Options& options, const Tokenizer* tokenizer,
                                    const ModelConfig& config) {
  std::vector<std::int32_t> ids = options.prompt_ids;
  if (ids.empty()) {
    if (tokenizer == nullptr) {
      refuse_text(options);
    }
    std::vector<std::uint32_t> encoded = tokenizer->begin_tokens();
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

void generate_texts(Options options, const LoadedModel& loaded) {
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
    options.generation.end_tokens = end_tokens_of(*tokens.tokenizer, tokens.end_token);
  } else if (tokens.end_token >= 0) {
    options.generation.end_tokens = {static_cast<std::int32_t>(tokens.end_token)};
  }
  const std::vector<std::int32_t> prompt = prompt_of(options, tokens.tokenizer.get(), config);

  const ParamLayout layout(config);
  Arena arena(options.device, ArenaMode::allocate);
  Stream stream(options.device, StreamPriority::normal, "compute");
  WholeModel model(layout, options.dtype, loaded.source, arena, stream);
  const KernelTable& kernels = kernel_table(options.device.kind);
  ScratchOptions buffers;  // of one tile
  buffers.batch = {1, Decoder::kTile};
  buffers.precision = precision_of(options.dtype);
  buffers.recompute = Recompute::block;
  buffers.decodes = true;
  const TrainingScratch scratch(kernels, config, buffers, arena);
  Decoder decoder(kernels, config, layout, std::ssize(prompt) + options.generation.max_tokens,
                  options.dtype, scratch.decoder_work(), arena);
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
      // What a document begins with is not of the user's text.
      const auto begin = std::ssize(tokens.tokenizer->begin_tokens());
      std::for_each(prompt.begin() + begin, prompt.end(),
                    [&](std::int32_t id) { printer.add(id); });
      generate(decoder, model, stream, prompt, options.generation, [&](std::int32_t id) {
        printer.add(id);
        return std::cout.good();
      });
      printer.finish();
    }
    ++options.generation.sampling.seed;
  }
}

void generate_from(const Options& options) {
  if (path_exists(options.from / "config.json")) {
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
}  // namespace tessera::generation

int main(int argc, char** argv) {
  return tessera::run_program("generate", [&] {
    if (const auto options = tessera::generation::parse_options(argc, argv)) {
      tessera::generation::generate_from(*options);
    }
    return 0;
  });
}
