#include "jobs/convert/options.h"

#include <initializer_list>
#include <vector>

#include <boost/program_options.hpp>
#include <fmt/format.h>

#include "jobs/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/quantity.h"

namespace tessera {
namespace {

namespace po = boost::program_options;

constexpr const char* kUsage =
    R"(convert import HF_FOLDER OUT [--resize-vocab N]
    reads config.json and model.safetensors (or an index with several files; bf16, f16 or f32) and
    writes OUT/step-00000000, from which `train --init OUT` starts
convert export RUN_OR_STEP HF_FOLDER [options]
    writes the latest step of a run, or the step given, as safetensors files with config.json,
    generation_config.json (which tokens end a text) and the run's tokenizer; train --export writes
    the same
convert export RUN_OR_STEP PEFT_FOLDER --adapter
    writes the adapters of a run of train --lora as PEFT has them
convert merge RUN_OR_STEP_OR_PEFT_FOLDER HF_FOLDER --base MODEL [options]
    adds adapters to their base in f32, rounds once and writes a model as export does; MODEL is a
    Hugging Face folder, also one in 4 bits, a run or a step
convert quantise MODEL HF_FOLDER [--max-shard-bytes SIZE]
    writes the matrices of the blocks in 4 bits (NF4) and the rest without loss, in the layout of
    transformers and bitsandbytes, which open the folder too; MODEL is a Hugging Face folder, a run
    or a step

)";

[[noreturn]] void refuse(const std::string& message) {
  throw ConfigError(message, TESSERA_HERE);
}

SafetensorsType parse_type(const std::string& text) {
  if (text == "bf16") {
    return SafetensorsType::bf16;
  }
  if (text != "f32") {
    refuse(fmt::format("--dtype {}: give bf16 or f32", text));
  }
  return SafetensorsType::f32;
}

po::options_description described() {
  po::options_description import_options = option_group("Options of import");
  import_options.add_options()(
      "resize-vocab", po::value<std::string>()->value_name("N"),
      "rows of embedding and head, for tokens that a tokenizer got (tokenize --chat names them); "
      "new rows are the mean of the old ones");
  po::options_description merge_options = option_group("Options of merge");
  merge_options.add_options()("base", po::value<std::string>()->value_name("MODEL"),
                              "the model that the adapters were trained beside");
  po::options_description shown = option_group("Options of export and merge");
  shown.add_options()  //
      ("dtype", po::value<std::string>()->default_value("bf16")->value_name("bf16|f32"),
       "type of the tensors")  //
      ("max-shard-bytes", po::value<std::string>()->default_value("5GB")->value_name("SIZE"),
       "of quantise too: bytes of tensors in one file")  //
      ("like", po::value<std::string>()->value_name("HF_FOLDER"),
       "of export: copy tokenizer and generation_config.json of this folder; a tokenizer that is "
       "not the run's is refused. Default: what the run keeps of its own")  //
      ("allow-tokenizer-mismatch", switch_value(), "copy it nevertheless")  //
      ("adapter", switch_value(), "of export: the adapters alone, as a folder of PEFT's");
  shown.add(merge_options).add(import_options);
  return shown;
}

void refuse_others(const po::variables_map& given, std::initializer_list<const char*> names,
                   const char* why) {
  for (const char* name : names) {
    if (given.contains(name) && !given[name].defaulted()) {
      refuse(fmt::format("--{} {}", name, why));
    }
  }
}

void require_fitting(const po::variables_map& given, const ConvertOptions& options) {
  if (options.command != "import") {
    refuse_others(given, {"resize-vocab"}, "is for import");
  }
  if (options.command == "quantise") {
    refuse_others(given, {"dtype", "like", "allow-tokenizer-mismatch", "adapter"},
                  "is for export: quantise keeps what is not in 4 bits as it is");
  }
  if (options.command == "import") {
    refuse_others(given, {"dtype", "max-shard-bytes", "like", "allow-tokenizer-mismatch"},
                  "is for export: import keeps every bit in f32");
    refuse_others(given, {"adapter"}, "is for export");
  }
  if (options.command != "merge") {
    refuse_others(given, {"base"}, "is for merge");
    if (options.adapters) {
      refuse_others(given, {"dtype", "max-shard-bytes", "like", "allow-tokenizer-mismatch"},
                    "does not go with --adapter: adapters are written in f32, without a tokenizer");
    }
    return;
  }
  refuse_others(given, {"like", "allow-tokenizer-mismatch", "adapter"}, "is for export");
  if (options.base.empty()) {
    refuse("merge needs --base: the model that the adapters were trained beside");
  }
}

}  // namespace

std::optional<ConvertOptions> parse_convert_options(int argc, char** argv) {
  const std::optional<CommandLine> line =
      read_command_line(argc, argv, "convert", kUsage, described());
  if (!line) {
    return std::nullopt;
  }
  const po::variables_map& given = line->given;
  const std::vector<std::string>& words = line->words;
  constexpr std::size_t kWords = 3;  // command, from, to
  if (words.size() != kWords || (words[0] != "import" && words[0] != "export" &&
                                 words[0] != "merge" && words[0] != "quantise")) {
    refuse("give 'import HF_FOLDER OUT', 'export RUN_OR_STEP HF_FOLDER', 'merge RUN_OR_STEP "
           "HF_FOLDER --base MODEL' or 'quantise MODEL HF_FOLDER' (convert --help)");
  }
  ConvertOptions options;
  options.command = words[0];
  options.from = words[1];
  options.to = words[2];
  options.adapters = is_on(given, "adapter");
  if (given.contains("base")) {
    options.base = given["base"].as<std::string>();
  }
  require_fitting(given, options);
  if (given.contains("resize-vocab")) {
    options.vocab_size =
        parse_count(given["resize-vocab"].as<std::string>(), {1, kMostTokens}, "--resize-vocab");
  }
  options.huggingface.type = parse_type(given["dtype"].as<std::string>());
  options.huggingface.max_shard_bytes = static_cast<std::int64_t>(parse_bytes(
      given["max-shard-bytes"].as<std::string>(), {1, kMostBytes}, "--max-shard-bytes"));
  if (given.contains("like")) {
    options.like = given["like"].as<std::string>();
  }
  if (is_on(given, "allow-tokenizer-mismatch")) {
    options.on_mismatch = OnTokenizerMismatch::report;
  }
  return options;
}

}  // namespace tessera
