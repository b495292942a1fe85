// convert: Hugging Face's model folders into checkpoints that `train --init` starts from, and
// checkpoints into folders that transformers and inference engines load; adapters into PEFT's folders
// and into their base; models into 4 bits. One process, no GPU, memory for a few blocks whatever the model's size.
#include <filesystem>
#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "jobs/convert/adapters.h"
#include "jobs/convert/companions.h"
#include "jobs/convert/options.h"
#include "jobs/convert/quantise.h"
#include "jobs/convert/resized_vocab.h"
#include "jobs/convert/shared_progress.h"
#include "jobs/program.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/hash.h"
#include "kernels/base/quantity.h"
#include "model/huggingface.h"
#include "model/huggingface_writer.h"
#include "model/nf4_files.h"
#include "model/peft_folder.h"
#include "runtime/checkpoint/adapter_base.h"
#include "runtime/checkpoint/export_companions.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/checkpoint/run_tokenizer.h"
#include "runtime/checkpoint/weight_source.h"
#include "runtime/checkpoint/writer.h"

namespace tessera {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw ConfigError(message, TESSERA_HERE);
}

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
  require_room_for_folder(options.to, options.to.string());
  if (output_exists(options.to) && !named_steps(options.to).empty()) {
    refuse(fmt::format("{} holds checkpoints already: give another folder", options.to.string()));
  }
  require_no_peft_folder(options.from, options.from.string());
  if (is_nf4_folder(options.from)) {
    refuse(fmt::format(
        "{0} is in 4 bits: `train --init {0} --lora RANK --base-dtype nf4` takes it as it "
        "is",
        options.from.string()));
  }
  const HuggingFaceFolder model(options.from);
  const std::optional<TokenizerFiles> tokenizer = tokenizer_files_of(options.from);
  const ResizedVocab resized(model, options.vocab_size.value_or(model.config().vocab_size));
  const ParamLayout layout(resized.config());
  const Index total = layout.total_count();
  print_lines(fmt::format("{}: {} with {} parameters, {} in {} file{}\n", options.from.string(),
                          model.config().model_type, total,
                          format_bytes(static_cast<std::size_t>(model.tensor_bytes())),
                          model.file_count(), model.file_count() == 1 ? "" : "s"));
  WriteRequest request;
  request.run_folder = options.to;
  request.info.optimizer.reset();
  request.info.run_id = new_uuid();
  request.info.config_json = to_config_json(resized.config());
  request.info.config_hash = hash_text(xxh3_64(bytes_of(request.info.config_json)));
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
    say_note(fmt::format("convert: {}", problem));
  }
  print_lines(fmt::format("imported {} into {}\n",
                          rate_text(model.tensor_bytes(), progress.seconds()),
                          result.folder.string()));
}

void say_passed_over(const StepFolder& step) {
  say_note(fmt::format("convert: passing over {}, which is {}: {}", step.path.string(),
                       state_name(step.state), step.reason));
}

void export_from(CheckpointReader& reader, const std::filesystem::path& run_folder,
                 const ConvertOptions& options) {
  if (options.adapters) {
    export_adapters(reader, options);
    return;
  }
  if (holds_adapters(reader.info())) {
    require_real_base(reader.info(), reader.folder().string());
    refuse(
        fmt::format("{} holds adapters, not a model: --adapter writes them as PEFT's folder, and "
                    "`convert merge` a model with their base",
                    reader.folder().string()));
  }
  const ModelConfig config =
      parse_config_json(reader.info().config_json, (reader.folder() / kManifestName).string());
  if (reader.info().nonfinite_params > 0) {
    say_note(fmt::format("convert: {} parameters of {} are not finite",
                         reader.info().nonfinite_params, reader.folder().string()));
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
  print_lines(fmt::format("exported {} as {}, {}, to {}\n", reader.folder().string(),
                          type_name(options.huggingface.type),
                          rate_text(writer.tensor_bytes(), progress.seconds()),
                          options.to.string()));
  if (!options.like.empty()) {
    print_lines(fmt::format("copied {} of {}\n", counted(copied, "file"), options.like));
  } else if (copied > 0) {
    print_lines(fmt::format("with {} of the run's tokenizer\n", counted(copied, "file")));
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
  require_no_peft_folder(options.from, options.from.string());
  const std::filesystem::path run_folder =
      path_exists(options.from / kManifestName) ? run_folder_of(options.from) : options.from;
  if (!options.like.empty()) {
    compare_tokenizers(run_folder, options.like, options.on_mismatch);
  }
  with_newest_step(options.from, say_passed_over,
                   [&](CheckpointReader& reader) { export_from(reader, run_folder, options); });
  if (!options.adapters) {
    print_missing_tokenizer(run_folder, options.to);
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::run_program("convert", [&] {
    const auto options = tessera::parse_convert_options(argc, argv);
    if (!options) {
      return 0;
    }
    if (options->command == "import") {
      tessera::import_folder(*options);
    } else if (options->command == "merge") {
      tessera::merge_adapters(*options);
    } else if (options->command == "quantise") {
      tessera::quantise_model(*options);
    } else {
      tessera::export_step(*options);
    }
    return 0;
  });
}
