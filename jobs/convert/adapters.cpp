#include "jobs/convert/adapters.h"

#include <algorithm>
#include <iostream>
#include <vector>

#include <fmt/format.h>

#include "jobs/convert/companions.h"
#include "jobs/convert/shared_progress.h"
#include "jobs/program.h"
#include "kernels/base/error.h"
#include "kernels/base/file_status.h"
#include "kernels/base/parallel.h"
#include "model/huggingface_writer.h"
#include "model/merge_adapters.h"
#include "model/peft_folder.h"
#include "runtime/checkpoint/adapter_base.h"
#include "runtime/checkpoint/export_companions.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/checkpoint/weight_source.h"

namespace tessera {
namespace {

// `folder`: of the run, or of PEFT's.
void write_merged(const ModelSource& base, const AdapterSource& adapters, const std::string& source,
                  const std::filesystem::path& folder, const ConvertOptions& options) {
  const UnitValues merged =
      merged_values(base.config(), *adapters.layout, base.values(), adapters.values);
  HuggingFaceWriter writer(options.to, base.config(), options.huggingface);
  const int copied = path_exists(base.folder() / kConfigFile)
                         ? copy_companions(base.folder(), writer.partial_folder())
                         : write_companions(base.folder(), writer.partial_folder());
  write_chat_template(folder, writer.partial_folder());
  constexpr Index kPiece = Index{1} << 22;  // elements; A is read once for each
  struct Piece {
    UnitId unit;
    Index begin;
  };
  std::vector<Piece> pieces;
  for (UnitId unit = 0; unit < base.layout().unit_count(); ++unit) {
    for (Index begin = 0; begin < base.layout().unit(unit).count; begin += kPiece) {
      pieces.push_back({unit, begin});
    }
  }
  SharedProgress progress("merging", writer.tensor_bytes());
  for_each_in_parallel(std::ssize(pieces), [&](Index i) {
    const auto [id, begin] = pieces[static_cast<std::size_t>(i)];
    const ParamUnit& unit = base.layout().unit(id);
    std::vector<float> values(static_cast<std::size_t>(std::min(kPiece, unit.count - begin)));
    merged(id, begin, values);
    for_each_tensor(unit, begin, begin + std::ssize(values),
                    [&, from = begin](const ParamTensor& tensor, Index first, Index last) {
                      writer.write(tensor.name, first - tensor.offset,
                                   std::span<const float>(values).subspan(
                                       static_cast<std::size_t>(first - from),
                                       static_cast<std::size_t>(last - first)));
                    });
    progress.add(writer.bytes_of(std::ssize(values)));
  });
  writer.finish();
  print_lines(fmt::format("merged {} into {}, {} as {}, to {}\n", source, base.folder().string(),
                          rate_text(writer.tensor_bytes(), progress.seconds()),
                          type_name(options.huggingface.type), options.to.string()));
  if (base.is_packed()) {
    print_lines(fmt::format("{} is in 4 bits: its matrices were widened as they are; --base with "
                            "the model that it was made of "
                            "keeps what 4 bits lose\n",
                            base.folder().string()));
  }
  if (copied > 0) {
    print_lines(fmt::format("with {} of the base\n", counted(copied, "file")));
  }
}

}  // namespace

void export_adapters(CheckpointReader& reader, const ConvertOptions& options) {
  const ManifestInfo& info = reader.info();
  const std::string step = reader.folder().string();
  if (!holds_adapters(info)) {
    throw ConfigError(fmt::format("--adapter: {} holds a whole model: leave --adapter out", step),
                      TESSERA_HERE);
  }
  require_real_base(info, step);
  const AdapterLayout layout(parse_config_json(info.config_json, step),
                             parse_adapter_json(info.adapter_json, step));
  const AdapterBase base = adapter_base(info);
  write_peft_folder(
      options.to, layout, {.name = base.source, .hash = base.hash, .dtype = base.dtype},
      [&](UnitId unit, Index begin, std::span<float> values) {
        reader.read(StateArray::master, layout.params().unit(unit).name, begin, values);
      });
  print_lines(fmt::format("exported the adapters of {} ({}) to {}\n", step,
                          adapter_text(layout.config()), options.to.string()));
}

void merge_adapters(const ConvertOptions& options) {
  if (path_exists(options.from / kConfigFile)) {
    throw ConfigError(
        fmt::format("{} holds a whole model: merge needs adapters, a run or a step of "
                    "them or a folder of PEFT's",
                    options.from.string()),
        TESSERA_HERE);
  }
  const ModelSource base(options.base, "--base");
  if (is_peft_folder(options.from)) {
    write_merged(base, adapters_of(options.from, base), options.from.string(), options.from,
                 options);
    return;
  }
  const auto say = [](const StepFolder& step) {
    say_note(fmt::format("convert: passing over {}, which is {}: {}", step.path.string(),
                         state_name(step.state), step.reason));
  };
  with_newest_step(options.from, say, [&](CheckpointReader& reader) {
    if (!holds_adapters(reader.info())) {
      throw ConfigError(fmt::format("{} holds a whole model: `convert export` makes a Hugging Face "
                                    "folder of it",
                                    reader.folder().string()),
                        TESSERA_HERE);
    }
    require_finite(reader);
    write_merged(base, adapters_of(reader, base), reader.folder().string(),
                 run_folder_of(reader.folder()), options);
  });
}

}  // namespace tessera
