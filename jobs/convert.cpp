// convert: Hugging Face's model folders into checkpoints that `train --init` starts from, and
// checkpoints into folders that transformers and inference engines load. One process, no GPU,
// memory for a few blocks whatever the model's size.
#include <filesystem>
#include <iostream>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <boost/program_options.hpp>
#include <fmt/format.h>

#include "jobs/command_line.h"
#include "jobs/convert/companions.h"
#include "jobs/convert/resized_vocab.h"
#include "jobs/program.h"
#include "jobs/progress_bar.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/hash.h"
#include "kernels/base/quantity.h"
#include "model/huggingface.h"
#include "model/huggingface_writer.h"
#include "runtime/checkpoint/export_companions.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/checkpoint/run_tokenizer.h"
#include "runtime/checkpoint/writer.h"

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

)";

struct ConvertOptions {
  std::string command;
  std::filesystem::path from;
  std::filesystem::path to;
  HuggingFaceOptions huggingface;
  std::string like;
  std::optional<Index> vocab_size;  // of import; empty: the model's own
  OnTokenizerMismatch on_mismatch = OnTokenizerMismatch::refuse;
};

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

// Empty if help or the version was asked for and printed.
std::optional<ConvertOptions> parse_options(int argc, char** argv) {
  po::options_description import_options("Options of import");
  import_options.add_options()(
      "resize-vocab", po::value<std::string>()->value_name("N"),
      "rows of embedding and head, for tokens that a tokenizer got (tokenize --chat names them); "
      "new rows are the mean of the old ones");
  po::options_description shown("Options of export");
  shown.add_options()  //
      ("dtype", po::value<std::string>()->default_value("bf16")->value_name("bf16|f32"),
       "type of the tensors")  //
      ("max-shard-bytes", po::value<std::string>()->default_value("5GB")->value_name("SIZE"),
       "bytes of tensors in one file")  //
      ("like", po::value<std::string>()->value_name("HF_FOLDER"),
       "copy tokenizer and generation_config.json of this folder; a tokenizer that is not the "
       "run's is refused. Default: what the run keeps of its own")  //
      ("allow-tokenizer-mismatch", switch_value(), "copy it nevertheless");
  shown.add(import_options);
  const std::optional<CommandLine> line = read_command_line(argc, argv, "convert", kUsage, shown);
  if (!line) {
    return std::nullopt;
  }
  const po::variables_map& given = line->given;
  const std::vector<std::string>& words = line->words;
  constexpr std::size_t kWords = 3;  // command, from, to
  if (words.size() != kWords || (words[0] != "import" && words[0] != "export")) {
    refuse("give 'import HF_FOLDER OUT' or 'export RUN_OR_STEP HF_FOLDER' (convert --help)");
  }
  ConvertOptions options;
  options.command = words[0];
  options.from = words[1];
  options.to = words[2];
  if (given.contains("resize-vocab")) {
    if (options.command == "export") {
      refuse("--resize-vocab is for import");
    }
    options.vocab_size =
        parse_count(given["resize-vocab"].as<std::string>(), {1, kMostTokens}, "--resize-vocab");
  }
  if (options.command == "import") {
    for (const char* name : {"dtype", "max-shard-bytes", "like", "allow-tokenizer-mismatch"}) {
      if (given.contains(name) && !given[name].defaulted()) {
        refuse(fmt::format("--{} is for export: import keeps every bit in f32", name));
      }
    }
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

// "3.44 GB in 2.1 s (1.64 GB/s)"
std::string rate_text(std::int64_t bytes, double seconds) {
  return fmt::format("{} in {:.1f} s ({}/s)", format_bytes(static_cast<std::size_t>(bytes)),
                     seconds,
                     format_bytes(static_cast<std::size_t>(static_cast<double>(bytes) / seconds)));
}

// A progress bar for several threads.
class SharedProgress {
 public:
  SharedProgress(std::string_view what, std::int64_t total) : bar_(what), total_(total) {}
  void add(std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    bar_.update(done_, total_);
  }
  [[nodiscard]] double seconds() const { return bar_.seconds(); }

 private:
  std::mutex mutex_;
  ProgressBar bar_;
  std::int64_t done_ = 0;
  std::int64_t total_;
};

// A folder of the kind that the other command reads.
enum class Kind { unknown, checkpoint, huggingface };
Kind kind_of(const std::filesystem::path& folder) {
  if (!is_folder(folder)) {
    return Kind::unknown;
  }
  const bool has_steps = path_exists(folder / kManifestName) || !named_steps(folder).empty();
  const bool has_config = path_exists(folder / "config.json");
  return has_steps == has_config ? Kind::unknown : has_steps ? Kind::checkpoint : Kind::huggingface;
}

void import_folder(const ConvertOptions& options) {
  require_no_step_name("import to", options.to);
  if (kind_of(options.from) == Kind::checkpoint) {
    throw FormatError(
        fmt::format("{0} holds a checkpoint, not a Hugging Face model: `train --init {0}` takes it "
                    "as it is, and `convert export {0} HF_FOLDER` makes such a model of it",
                    options.from.string()),
        TESSERA_HERE);
  }
  if (output_exists(options.to) && !is_output_folder(options.to)) {
    throw WriteError(fmt::format("{} is not a folder: give another one", options.to.string()),
                     TESSERA_HERE);
  }
  if (output_exists(options.to) && !named_steps(options.to).empty()) {
    refuse(fmt::format("{} holds checkpoints already: give another folder", options.to.string()));
  }
  const HuggingFaceFolder model(options.from);
  const std::optional<TokenizerFiles> tokenizer = tokenizer_files_of(options.from);
  const ResizedVocab resized(model, options.vocab_size.value_or(model.config().vocab_size));
  const ParamLayout layout(resized.config());
  const Index total = layout.total_count();
  std::cout << fmt::format("{}: {} with {} parameters, {} in {} file{}\n", options.from.string(),
                           model.config().model_type, total,
                           format_bytes(static_cast<std::size_t>(model.tensor_bytes())),
                           model.file_count(), model.file_count() == 1 ? "" : "s");
  WriteRequest request;
  request.run_folder = options.to;
  request.info.optimizer.reset();
  request.info.run_id = new_uuid();
  request.info.config_json = to_config_json(resized.config());
  request.info.config_hash = fmt::format("{:016x}", xxh3_64(bytes_of(request.info.config_json)));
  request.table = param_table(layout);
  SharedProgress progress("importing", total * static_cast<Index>(sizeof(float)));
  request.source = [&](StateArray, const ParamRow& param, Index begin, std::span<float> values) {
    resized.read(param.name, begin, values);
    progress.add(static_cast<std::int64_t>(values.size_bytes()));
  };
  if (tokenizer) {  // first: what it finds in its way must not end an import that is done
    keep_tokenizer(*tokenizer, resized.config(), options.to);
  }
  const CommitResult result = write_checkpoint(request);
  for (const std::string& problem : result.problems) {
    std::cerr << "convert: " << problem << "\n";
  }
  std::cout << fmt::format("imported {} into {}\n",
                           rate_text(model.tensor_bytes(), progress.seconds()),
                           result.folder.string());
}

void say_passed_over(const StepFolder& step) {
  std::cerr << fmt::format("convert: passing over {}, which is {}: {}\n", step.path.string(),
                           state_name(step.state), step.reason);
}

void export_from(CheckpointReader& reader, const std::filesystem::path& run_folder,
                 const ConvertOptions& options) {
  const ModelConfig config =
      parse_config_json(reader.info().config_json, (reader.folder() / kManifestName).string());
  if (reader.info().nonfinite_params > 0) {
    std::cerr << fmt::format("convert: {} parameters of {} are not finite\n",
                             reader.info().nonfinite_params, reader.folder().string());
  }
  HuggingFaceWriter writer(options.to, config, options.huggingface);
  const int copied = options.like.empty() ? write_companions(run_folder, writer.partial_folder())
                                          : copy_companions(options.like, writer.partial_folder());
  SharedProgress progress("exporting", writer.tensor_bytes());
  reader.stream(StateArray::master, [&](const CheckpointReader::ParamPiece& piece) {
    writer.write(reader.table().params[piece.param].name, piece.begin, piece.values);
    progress.add(writer.bytes_of(std::ssize(piece.values)));
  });
  writer.finish();
  std::cout << fmt::format("exported {} as {}, {}, to {}\n", reader.folder().string(),
                           type_name(options.huggingface.type),
                           rate_text(writer.tensor_bytes(), progress.seconds()),
                           options.to.string());
  if (!options.like.empty()) {
    std::cout << fmt::format("copied {} of {}\n", counted(copied, "file"), options.like);
  } else if (copied > 0) {
    std::cout << fmt::format("with {} of the run's tokenizer\n", counted(copied, "file"));
  }
}

void export_step(const ConvertOptions& options) {
  if (!options.like.empty() && !is_folder(options.like)) {
    refuse(fmt::format("--like {}: there is no such folder", options.like));
  }
  if (kind_of(options.from) == Kind::huggingface) {
    throw FormatError(fmt::format("{0} is a Hugging Face model already: `convert import {0} OUT` "
                                  "makes a checkpoint of it",
                                  options.from.string()),
                      TESSERA_HERE);
  }
  const std::filesystem::path run_folder =
      path_exists(options.from / kManifestName) ? run_folder_of(options.from) : options.from;
  if (!options.like.empty()) {
    compare_tokenizers(run_folder, options.like, options.on_mismatch);
  }
  with_newest_step(options.from, say_passed_over,
                   [&](CheckpointReader& reader) { export_from(reader, run_folder, options); });
  print_missing_tokenizer(run_folder, options.to);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::run_program("convert", [&] {
    const auto options = tessera::parse_options(argc, argv);
    if (!options) {
      return 0;
    }
    if (options->command == "import") {
      tessera::import_folder(*options);
    } else {
      tessera::export_step(*options);
    }
    return 0;
  });
}
