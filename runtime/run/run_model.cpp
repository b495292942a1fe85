#include "runtime/run/run_model.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "model/huggingface.h"
#include "runtime/data/token_file.h"
#include "runtime/launch/agree.h"
#include "runtime/launch/start_agreement.h"
#include "runtime/run/option_checks.h"
#include "runtime/run/resume.h"
#include "runtime/run/run_data.h"

namespace tessera {
namespace {

// The model as --model, or in its place the folder of --init, names it; the vocabulary may still be
// the data's.
ModelConfig named_model(const RunConfig& options, const std::string& init) {
  if (options.model.name != "auto") {
    if (is_model_file(options.model.name)) {
      require_readable("--model", options.model.name, "a preset's name or a config.json");
    }
    return find_model(options.model.name);
  }
  return init.empty() ? preset("tiny") : init_model(init);
}

// The folder of --init as all ranks name it; empty: the model is not taken from there.
std::string agreed_model_init(MpiSession& session, const RunConfig& options) {
  return options.model.name == "auto" && !options.model.init.empty()
             ? agreed_init(session, options.model.init)
             : std::string();
}

}  // namespace

ModelConfig agreed_model(MpiSession& session, const RunConfig& options) {
  const std::string init = agreed_model_init(session, options);
  ModelConfig config = agree(session, [&] { return named_model(options, init); });
  require_same_start(session, model_values(config));
  return config;
}

ModelConfig with_vocabulary(ModelConfig config, const RunConfig& options) {
  if (config.vocab_size == 0) {
    for (const std::string& text : options.data.files) {
      for (const std::filesystem::path& file : open_data_set(text).files) {
        config.vocab_size = std::max(config.vocab_size, TokenFile(file).info().vocab_size);
      }
    }
  }
  return config;
}

std::string random_weights_text(const RunConfig& options) {
  if (!options.model.init.empty() || !is_model_file(options.model.name)) {
    return {};
  }
  const std::filesystem::path file = options.model.name;
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  if (!has_weight_files(folder)) {
    return {};
  }
  return fmt::format("the weights are random (--seed {}), in the shape of {}; to start from the "
                     "weights beside it: --init {}",
                     options.seed, options.model.name, folder.string());
}

}  // namespace tessera
