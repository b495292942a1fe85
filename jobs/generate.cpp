// generate: continues a text, or a chat, with the model of a checkpoint. One process, on the CPU or
// one GPU.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "jobs/generate/chat.h"
#include "jobs/generate/generator.h"
#include "jobs/generate/options.h"
#include "jobs/generate/text_printer.h"
#include "jobs/generate/text_tokens.h"
#include "jobs/program.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "model/peft_folder.h"
#include "runtime/checkpoint/adapter_base.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/checkpoint/run_tokenizer.h"
#include "runtime/checkpoint/weight_source.h"

namespace tessera::generation {
namespace {

void say_passed_over(const StepFolder& step) {
  say_note(fmt::format("generate: passing over {}, which is {}: {}", step.path.string(),
                       state_name(step.state), step.reason));
}

// Its source reads from `reader`.
LoadedModel model_of(CheckpointReader& reader) {
  require_finite(reader);
  if (holds_adapters(reader.info())) {
    require_real_base(reader.info(), reader.folder().string());
    refuse(fmt::format("{} holds adapters: --base names the model that they belong to",
                       reader.folder().string()));
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
  const TextTokens tokens = find_tokenizer(options, loaded.folder);
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
  if (!options.chat.empty()) {
    if (tokens.tokenizer == nullptr) {
      refuse_text(options);
    }
    hold_chat(options, tokens, loaded);
    return;
  }
  const std::vector<std::int32_t> prompt = prompt_of(options, tokens.tokenizer.get(), config);

  Generator generator(options, loaded);
  for (Index sample = 0; sample < options.samples; ++sample) {
    if (options.print_ids || tokens.tokenizer == nullptr) {
      const char* separator = "";
      generator.run(prompt, options.generation, [&](std::int32_t id) {
        std::cout << separator << id << std::flush;
        separator = ",";
        return std::cout.good();  // nobody reads any more: run_program says so
      });
      std::cout << "\n";
    } else {
      TextPrinter printer(*tokens.tokenizer);
      // What a document begins with is not of the user's text.
      const auto begin = std::ssize(tokens.tokenizer->begin_tokens());
      std::for_each(prompt.begin() + begin, prompt.end(),
                    [&](std::int32_t id) { printer.add(id); });
      generator.run(prompt, options.generation,
                    [&](std::int32_t id) { return printer.add(id) && std::cout.good(); });
      printer.finish();
    }
    ++options.generation.sampling.seed;
  }
}

LoadedModel model_of(const ModelSource& base, const AdapterSource& adapters) {
  return {base.config(),
          [&base](UnitId unit, std::span<float> values) { base.read(unit, 0, values); },
          base.folder(), adapters.layout.get(),
          [&adapters](UnitId unit, std::span<float> values) { adapters.values(unit, 0, values); }};
}

void generate_beside(const Options& options) {
  const ModelSource base(options.base, "--base");
  if (is_peft_folder(options.from)) {
    const AdapterSource adapters = adapters_of(options.from, base);
    generate_texts(options, model_of(base, adapters));
    return;
  }
  with_newest_step(options.from, say_passed_over, [&](CheckpointReader& reader) {
    if (!holds_adapters(reader.info())) {
      refuse(fmt::format("--base: {} holds a whole model: leave --base out",
                         reader.folder().string()));
    }
    require_finite(reader);
    const AdapterSource adapters = adapters_of(reader, base);
    LoadedModel loaded = model_of(base, adapters);
    if (read_run_tokenizer(run_folder_of(reader.folder()))) {
      loaded.folder = run_folder_of(reader.folder());
    }
    generate_texts(options, loaded);
  });
}

void generate_from(const Options& options) {
  if (!options.base.empty()) {
    generate_beside(options);
    return;
  }
  if (is_peft_folder(options.from) && !path_exists(options.from / "config.json")) {
    refuse(fmt::format("{} holds adapters: --base names the model that they belong to",
                       options.from.string()));
  }
  if (path_exists(options.from / "config.json")) {
    const ModelSource model(options.from, "");
    generate_texts(options,
                   {model.config(),
                    [&model](UnitId unit, std::span<float> values) { model.read(unit, 0, values); },
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
