#include "jobs/inspect/adapter_folder.h"

#include <iostream>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/file_status.h"
#include "kernels/base/quantity.h"
#include "model/huggingface.h"
#include "model/peft_folder.h"
#include "runtime/checkpoint/run_folder.h"

namespace tessera::inspect {
namespace {

void refuse_other_options(const Options& options) {
  if (options.has_action() || options.seq > 0) {
    throw ConfigError(fmt::format("{} holds PEFT's adapters: of --stats, --param, --at, --hash, "
                                  "--verify, --command, --diff and --seq, which are of checkpoints "
                                  "and token files, none can be given",
                                  options.target.string()),
                      TESSERA_HERE);
  }
}

std::string or_else(const std::string& text, const char* unknown) {
  return text.empty() ? std::string(unknown) : text;
}

}  // namespace

bool is_adapter_folder(const std::filesystem::path& folder) {
  return is_peft_folder(folder) && !path_exists(folder / kManifestName) &&
         !path_exists(folder / kConfigFile) && named_steps(folder).empty();
}

void describe_adapter_folder(const Options& options, Output& out) {
  refuse_other_options(options);
  const AdapterConfig adapters = read_peft_config(options.target);
  const PeftBase base = read_peft_base(options.target);
  const SafetensorsFile file(options.target / kPeftWeights);
  Index count = 0;
  TextTable table({"tensor", "type", "shape"});
  out.document["adapter_folder"] = options.target.string();
  out.document["adapters"] = Json::parse(to_adapter_json(adapters));
  out.document["base"] = {{"name", base.name}, {"hash", base.hash}, {"dtype", base.dtype}};
  out.document["tensors"] = Json::array();
  for (const SafetensorsTensor& tensor : file.tensors()) {
    count += tensor.count;
    out.document["tensors"].push_back(
        {{"name", tensor.name}, {"type", type_name(tensor.type)}, {"shape", tensor.shape}});
    table.add({tensor.name, std::string(type_name(tensor.type)), shape_text(tensor.shape)});
  }
  out.document["params"] = count;
  if (!out.is_text()) {
    return;
  }
  std::cout << fmt::format("{}: PEFT's adapters of {}, {} parameters\n", options.target.string(),
                           adapter_text(adapters), grouped(count));
  std::cout << fmt::format("  the base: {}; hash {}, stored in {}\n\n",
                           or_else(base.name, "not named"), or_else(base.hash, "not named"),
                           or_else(base.dtype, "an unknown type"));
  table.print();
}

}  // namespace tessera::inspect
