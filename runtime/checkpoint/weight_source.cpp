#include "runtime/checkpoint/weight_source.h"

#include <algorithm>
#include <thread>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/file_status.h"
#include "kernels/base/hash.h"
#include "model/peft_folder.h"
#include "runtime/checkpoint/adapter_base.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/checkpoint/run_tokenizer.h"

namespace tessera {
namespace {

std::unique_ptr<CheckpointReader> newest_step(const std::filesystem::path& source) {
  require_folder(source);
  require_no_peft_folder(source, source.string());
  StepSearch search(source, [](const StepFolder&) {});
  ReadRetry retry;
  const std::optional<StepFolder> step = search.next(retry);
  if (!step) {
    throw FormatError(
        fmt::format("{}: neither a Hugging Face folder with config.json nor a run or a "
                    "step",
                    source.string()),
        TESSERA_HERE);
  }
  return std::make_unique<CheckpointReader>(step->path);
}

bool is_huggingface(const std::filesystem::path& source) {
  return path_exists(source / kConfigFile);
}

ModelConfig config_of(const CheckpointReader& reader) {
  return parse_config_json(reader.info().config_json, reader.folder().string());
}

// Fills what the unit has of elements begin, begin + 1, ...; the rest is zero.
void read_clipped(CheckpointReader& reader, const ParamUnit& unit, Index begin,
                  std::span<float> values) {
  const Index count = std::clamp<Index>(unit.count - begin, 0, std::ssize(values));
  std::ranges::fill(values.subspan(static_cast<std::size_t>(count)), 0.0F);
  if (count > 0) {
    reader.read(StateArray::master, unit.name, begin,
                values.first(static_cast<std::size_t>(count)));
  }
}

}  // namespace

void require_finite(const CheckpointReader& reader) {
  if (reader.info().nonfinite_params > 0) {
    throw FormatError(fmt::format("{} parameters of {} are not finite: take an earlier step",
                                  reader.info().nonfinite_params, reader.folder().string()),
                      TESSERA_HERE);
  }
}

ModelSource::ModelSource(const std::filesystem::path& source, std::string_view option)
    : packed_(is_nf4_folder(source) ? std::make_unique<Nf4Reader>(source) : nullptr),
      huggingface_(!packed_ && is_huggingface(source) ? std::make_unique<HuggingFaceFolder>(source)
                                                      : nullptr),
      reader_(packed_ || huggingface_ ? nullptr : newest_step(source)),
      config_(packed_        ? packed_->config()
              : huggingface_ ? huggingface_->config()
                             : config_of(*reader_)),
      layout_(config_) {
  folder_ = reader_ ? run_folder_of(reader_->folder()) : source;
  if (reader_ && holds_adapters(reader_->info())) {
    throw ConfigError(fmt::format("{} {} holds adapters, not a model: give the base that they were "
                                  "trained with",
                                  option, source.string()),
                      TESSERA_HERE);
  }
}

void ModelSource::read(UnitId unit, Index begin, std::span<float> values) const {
  if (packed_ || huggingface_) {
    packed_ ? packed_->read_unit(unit, begin, values)
            : huggingface_->read_unit(unit, begin, values);
    return;
  }
  const std::lock_guard lock(mutex_);
  read_clipped(*reader_, layout_.unit(unit), begin, values);
}

UnitValues ModelSource::values() const {
  return [this](UnitId unit, Index begin, std::span<float> values) { read(unit, begin, values); };
}

std::uint64_t ModelSource::hash() const {
  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return packed_ ? packed_->hash_of_base(packed_->content_hash(threads))
                 : content_hash(layout_, values(), threads);
}

namespace {

// As ManifestInfo::base_model_hash.
std::string hash_of(const ModelSource& base) {
  return hash_text(base.hash());
}

}  // namespace

AdapterSource adapters_of(const std::filesystem::path& peft_folder, const ModelSource& base) {
  const auto layout =
      std::make_shared<const AdapterLayout>(base.config(), read_peft_config(peft_folder));
  const auto folder = std::make_shared<const PeftFolder>(peft_folder, *layout);
  if (!folder->base_hash().empty()) {
    folder->require_base(hash_of(base), base.folder().string());
  }
  return {layout, [layout, folder](UnitId unit, Index begin, std::span<float> values) {
            folder->read_unit(unit, begin, values);
          }};
}

AdapterSource adapters_of(CheckpointReader& reader, const ModelSource& base) {
  const ManifestInfo& info = reader.info();
  const std::string step = reader.folder().string();
  TESSERA_REQUIRE(holds_adapters(info), "a step of adapters");
  require_real_base(info, step);
  if (to_config_json(parse_config_json(info.config_json, step)) != to_config_json(base.config())) {
    throw ConfigError(fmt::format("{} holds adapters of another model than {}: give the base that "
                                  "they were trained with",
                                  step, base.folder().string()),
                      TESSERA_HERE);
  }
  const std::string hash = hash_of(base);
  if (hash != info.base_model_hash) {
    throw ConfigError(fmt::format("{} holds adapters of another base (hash {}) than {} (hash {}): "
                                  "give the base that they were trained with",
                                  step, info.base_model_hash, base.folder().string(), hash),
                      TESSERA_HERE);
  }
  const auto layout = std::make_shared<const AdapterLayout>(
      base.config(), parse_adapter_json(info.adapter_json, step));
  const auto mutex = std::make_shared<std::mutex>();
  return {layout, [layout, mutex, &reader](UnitId unit, Index begin, std::span<float> values) {
            const std::lock_guard lock(*mutex);
            read_clipped(reader, layout->params().unit(unit), begin, values);
          }};
}

}  // namespace tessera
