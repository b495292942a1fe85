#include "runtime/run/start_state.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>

#include <fmt/format.h>

#include "collectives/mpi_control.h"
#include "kernels/base/error.h"
#include "kernels/base/file_status.h"
#include "kernels/base/hash.h"
#include "kernels/base/log.h"
#include "kernels/base/quantity.h"
#include "model/peft_folder.h"
#include "runtime/checkpoint/adapter_base.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/launch/agree.h"
#include "runtime/launch/same_weights.h"
#include "runtime/launch/start_agreement.h"
#include "runtime/run/base_cache.h"
#include "runtime/run/checkpoint_output.h"
#include "runtime/run/document_choice.h"
#include "runtime/run/option_checks.h"
#include "runtime/run/resume_compare.h"

namespace tessera {
namespace {

// What of the model has which values: those of --init, or fresh ones.
UnitValues base_values(const std::optional<InitWeights>& weights, TrainingRun& run) {
  if (!weights) {
    return run.initial_model();
  }
  if (weights->nf4) {
    const Nf4Reader& folder = *weights->nf4;
    require_same_model(to_config_json(folder.config()), weights->folder.string(), run);
    return [&folder](UnitId unit, Index begin, std::span<float> values) {
      folder.read_unit(unit, begin, values);
    };
  }
  if (weights->huggingface) {
    const HuggingFaceFolder& folder = *weights->huggingface;
    require_same_model(to_config_json(folder.config()), weights->folder.string(), run);
    return [&folder](UnitId unit, Index begin, std::span<float> values) {
      folder.read_unit(unit, begin, values);
    };
  }
  struct Shared {
    explicit Shared(const std::filesystem::path& folder) : reader(folder) {}
    CheckpointReader reader;
    std::mutex mutex;  // a reader is for one thread at a time
  };
  const auto shared = std::make_shared<Shared>(weights->folder);
  const ManifestInfo& info = shared->reader.info();
  if (!info.adapter_json.empty()) {
    throw ConfigError(fmt::format("--init {} holds adapters, not a model: name the base that they "
                                  "belong to",
                                  weights->folder.string()),
                      TESSERA_HERE);
  }
  require_same_model(info.config_json, weights->folder.string(), run);
  return [shared, &layout = run.model_layout()](UnitId unit, Index begin, std::span<float> values) {
    const ParamUnit& of = layout.unit(unit);
    const Index count = std::clamp<Index>(of.count - begin, 0, std::ssize(values));
    if (count > 0) {
      const std::lock_guard lock(shared->mutex);
      shared->reader.read(StateArray::master, of.name, begin,
                          values.first(static_cast<std::size_t>(count)));
    }
  };
}

// What packed blocks follow from.
std::string made_of(const InitWeights& weights, const TrainingRun& run) {
  return fmt::format("{}; {}{}; parameters of {} as {}", to_config_json(run.config()),
                     weights_value(weights).value,
                     weights.huggingface ? files_identity(*weights.huggingface) : std::string(),
                     dtype_name(run.packed_base()->params()),
                     dtype_name(run.settings().scratch.precision.param_values));
}

// Blocks that an earlier start has kept. False: there are none that are whole.
bool read_cache(BaseCache& cache, const UnitValues& values, TrainingRun& run) {
  const std::optional<std::uint64_t> hash = cache.find();
  if (!hash) {
    return false;
  }
  std::string why = "they are not what was written";
  try {
    run.write_base(
        {.values = values,
         .slices = [&cache](UnitId unit, Index begin,
                            std::span<std::byte> bytes) { cache.read(unit, begin, bytes); },
         .hash = hash});
    if (cache.is_undamaged()) {
      return true;
    }
  } catch (const AgreedMark&) {  // thrown on all ranks
    why = failure_of(std::current_exception()).message;
  }
  if (run.comm().rank() == 0) {
    log_line(LogLevel::warning,
             fmt::format("the blocks in nf4 of an earlier start cannot be used ({}): they are made "
                         "again",
                         why));
  }
  return false;
}

// The base's hash of the newest step in the folder; empty: there is no such step.
std::string trained_with(const std::string& out) {
  try {
    StepSearch search(out, [](const StepFolder&) {});
    ReadRetry retry;
    const std::optional<StepFolder> step = search.next(retry);
    return step && step->info ? step->info->base_model_hash : std::string();
  } catch (const Error&) {  // what looks for the step to continue says so
    return {};
  }
}

// Quantises, and keeps the blocks for the next start; or reads them.
void write_cached_base(MpiSession& session, const RunConfig& options, const InitWeights& weights,
                       const UnitValues& values, TrainingRun& run) {
  const std::string of = agree(session, [&] { return made_of(weights, run); });
  BaseCache cache(options.out, of, session.rank() == 0 ? trained_with(options.out) : std::string(),
                  *run.packed_base(), run.comm());
  if (read_cache(cache, values, run)) {
    run.gather_base();
    return;
  }
  BaseSource source = {.values = values};
  const bool keeps = cache.begin(static_cast<std::uint64_t>(run.comm().world_size()) *
                                 shard_file_bytes(run.shard()));
  if (keeps) {
    source.look = [&cache](UnitId unit, std::span<const std::byte> packed) {
      cache.write(unit, packed);
    };
  }
  run.write_base(source);
  run.gather_base();
  if (keeps) {
    cache.finish(run.base_hash());
  }
}

UnitValues load_base(MpiSession& session, const RunConfig& options,
                     const std::optional<InitWeights>& weights, TrainingRun& run) {
  if (run.settings().adapters->random_base) {
    const BaseSource random = run.random_base_source();
    run.write_base(random);
    run.gather_base();
    return random.values;
  }
  const UnitValues values = agree(session, [&] { return base_values(weights, run); });
  if (weights && !weights->nf4 && run.packed_base() != nullptr) {
    write_cached_base(session, options, *weights, values, run);
  } else {
    BaseSource source = {.values = values};
    if (weights && weights->nf4) {
      source.matrices = [&folder = *weights->nf4](const PackedPart& matrix,
                                                  std::span<std::byte> bytes) {
        folder.read(matrix.name, bytes);
      };
    }
    run.write_base(source);
    run.gather_base();
    if (weights && weights->nf4) {  // what was read has Nf4Reader's content_hash
      run.set_base_hash(weights->nf4->hash_of_base(run.base_hash()));
    }
  }
  if (weights && weights->huggingface) {
    require_same_base(session, *weights->huggingface, weights->folder.string(), run.base_hash());
  }
  return values;
}

std::string base_text(const std::optional<InitWeights>& weights, const TrainingRun& run) {
  const AdapterSettings& adapters = *run.settings().adapters;
  if (adapters.random_base) {
    return "random codes (--base-random: for measurements alone)";
  }
  return (weights ? weights->folder.string() : std::string("fresh weights (no --init)")) +
         (adapters.base == BaseStorage::nf4 ? " in nf4" : "");
}

void require_base_of(const ResumePoint& point, const std::string& base_hash,
                     const std::optional<InitWeights>& weights, const TrainingRun& run) {
  if (point.info.base_model_hash == base_hash) {
    return;
  }
  if (adapter_base(point.info).is_random) {
    throw ConfigError(
        fmt::format("{} holds adapters of a random base (hash {}), not of {} (hash {}): give "
                    "--base-random with its --model and --seed to continue, or another --out",
                    point.folder.string(), point.info.base_model_hash, base_text(weights, run),
                    base_hash),
        TESSERA_HERE);
  }
  throw ConfigError(
      fmt::format("{} holds adapters of another base (hash {}) than {} (hash {}): give --init "
                  "with the base that they were trained with",
                  point.folder.string(), point.info.base_model_hash, base_text(weights, run),
                  base_hash),
      TESSERA_HERE);
}

// Fresh adapters, or those of --init-adapter.
void begin_adapters(MpiSession& session, const RunConfig& options,
                    const std::optional<InitWeights>& weights, const UnitValues& base,
                    TrainingRun& run) {
  const std::string& folder = options.adapters.init_folder;
  if (folder.empty()) {
    agree(session, [&] { run.initialize_adapters(base); });
    return;
  }
  const auto adapters =
      agree(session, [&] { return std::make_unique<PeftFolder>(folder, *run.adapters()); });
  agree(session,
        [&] { adapters->require_base(hash_text(run.base_hash()), base_text(weights, run)); });
  const std::array same = {agree(session, [&] {
    return NamedValue{fmt::format("contents of --init-adapter {}", folder),
                      hash_text(adapters->content_hash())};
  })};
  require_same_start(session, same);
  agree(session, [&] {
    run.initialize_adapters(base, [&adapters](UnitId unit, Index begin, std::span<float> values) {
      adapters->read_unit(unit, begin, values);
    });
  });
}

std::string adapters_start(const RunConfig& options, const std::optional<InitWeights>& weights,
                           TrainingRun& run) {
  return fmt::format("adapters of {}: {} of {} parameters are trained{}, beside {}",
                     adapter_text(run.adapters()->config()), run.layout().total_count(),
                     run.model_layout().total_count() + run.layout().total_count(),
                     options.adapters.init_folder.empty()
                         ? std::string()
                         : fmt::format(", from {}", options.adapters.init_folder),
                     base_text(weights, run));
}

void require_real_base_of_newest(const std::string& folder) {
  StepSearch search(folder, [](const StepFolder&) {});
  ReadRetry retry;
  if (const std::optional<StepFolder> step = search.next(retry); step && step->info) {
    require_real_base(*step->info, step->path.string());
  }
}

// What --init-adapter is sometimes given in place of a folder of PEFT's.
void require_no_run(const std::string& folder) {
  if (path_exists(std::filesystem::path(folder) / kManifestName) || !named_steps(folder).empty()) {
    require_real_base_of_newest(folder);
    throw ConfigError(
        fmt::format("--init-adapter {0} is a run of train: continue it by --out, or make a "
                    "folder of PEFT's of it, `convert export {0} FOLDER --adapter`",
                    folder),
        TESSERA_HERE);
  }
}

// --base-dtype auto of a run that is continued: as the step that is continued has it.
RunConfig with_storage_of_step(MpiSession& session, RunConfig options) {
  if (options.adapters.base) {
    return options;
  }
  const std::string mine = agree(session, [&] {
    const std::optional<StoredOptions> step =
        session.rank() == 0 ? options_of_step(options) : std::nullopt;
    return step && step->contains("base-dtype") ? step->at("base-dtype") : std::string();
  });
  if (session.control().gather_text(mine).front() == "nf4") {
    options.adapters.base = BaseStorage::nf4;
    set_text(options, "base-dtype", "nf4");
  }
  return options;
}

// The options with the storage of a base that is in 4 bits already, or was before.
RunConfig with_base(MpiSession& session, RunConfig options) {
  if (options.model.init.empty()) {
    return options.adapters.rank ? with_storage_of_step(session, options) : options;
  }
  const std::string folder = agreed_init(session, options.model.init);
  const bool is_nf4 =
      agree(session, [&] { return is_huggingface_folder(folder) && is_nf4_folder(folder); });
  const std::array same = {
      NamedValue{fmt::format("kind of weights in --init {}", folder), is_nf4 ? "4 bits" : "whole"}};
  require_same_start(session, same);
  if (!options.adapters.rank) {
    if (is_nf4) {
      throw_agreed(
          {ConfigError("", TESSERA_HERE).exit_status(),
           fmt::format("--init {} holds weights in 4 bits, beside which adapters alone are "
                       "trained: give --lora, or --init with the whole weights",
                       folder)},
          TESSERA_HERE);
    }
    return options;
  }
  if (!is_nf4) {
    return with_storage_of_step(session, options);
  }
  if (options.adapters.base == BaseStorage::params) {
    throw_agreed({ConfigError("", TESSERA_HERE).exit_status(),
                  fmt::format("--base-dtype bf16: the weights of --init {} are in 4 bits: leave it "
                              "out, or give --init with the whole weights",
                              folder)},
                 TESSERA_HERE);
  }
  options.adapters.base = BaseStorage::nf4;
  set_text(options, "base-dtype", "nf4");
  return options;
}

}  // namespace

RunConfig agreed_adapters(MpiSession& session, const RunConfig& options) {
  const std::string& folder = options.adapters.init_folder;
  if (folder.empty()) {
    return with_base(session, options);
  }
  RunConfig known = options;
  const AdapterConfig adapters = agree(session, [&] {
    require_readable("--init-adapter", folder, "a folder of PEFT's", PathKind::folder);
    require_no_run(folder);
    return read_peft_config(folder);
  });
  const std::array same = {NamedValue{
      fmt::format("adapter_config.json of --init-adapter {}", folder), to_adapter_json(adapters)}};
  require_same_start(session, same);
  known.adapters.rank = adapters.rank;
  known.adapters.alpha = adapters.alpha;
  known.adapters.targets = adapters.targets;
  known.adapters.rank_stabilized = adapters.rank_stabilized;
  set_text(known, "lora", std::to_string(adapters.rank));
  set_text(known, "lora-alpha", fmt::format("{}", adapters.alpha));
  set_text(known, "lora-targets", projections_text(adapters.targets));
  set_text(known, "rslora", adapters.rank_stabilized ? "true" : "false");
  return with_base(session, known);
}

std::optional<InitWeights> agreed_weights(MpiSession& session, const RunConfig& options,
                                          const std::optional<ResumePoint>& point) {
  if (options.model.init.empty() || (point && !options.adapters.rank)) {
    return std::nullopt;
  }
  const std::string folder = agreed_init(session, options.model.init);
  InitWeights weights = agree(session, [&] { return open_weights(folder); });
  const std::array same = {agree(session, [&] { return weights_value(weights); })};
  require_same_start(session, same);
  return weights;
}

StartState load_start(MpiSession& session, RunConfig& options, RunIdentity& identity,
                      std::optional<ResumePoint>& point, const std::optional<InitWeights>& weights,
                      TrainingRun& run) {
  UnitValues base;
  if (run.adapters() != nullptr) {
    base = load_base(session, options, weights, run);
    identity.base_hash = hash_text(run.base_hash());
  }
  if (point) {
    if (run.adapters() != nullptr) {
      agree(session, [&] { require_base_of(*point, identity.base_hash, weights, run); });
    }
    const std::filesystem::path chosen = point->folder;
    load_state(session, options, identity, *point, run);
    options = with_steps_of(options, identity, point);  // it may be an earlier step now
    const std::string instead =
        point->folder == chosen
            ? std::string()
            : fmt::format("; not from {}, which is damaged", chosen.filename().string());
    return {fmt::format("continuing after step {} from {}, written by {}{}", point->info.step,
                        point->folder.string(), counted(point->info.world_size, "rank"), instead),
            fmt::format("the weights of {}", point->folder.string())};
  }
  if (run.adapters() != nullptr) {
    begin_adapters(session, options, weights, base, run);
    return {fmt::format("starting at step 1 with {}", adapters_start(options, weights, run)),
            weights ? fmt::format("the weights of --init {}", weights->folder.string())
                    : std::string("the initial weights")};
  }
  if (weights) {
    const std::string folder = load_weights(session, options, *weights, run).string();
    return {fmt::format("starting at step 1 with the weights of {}", folder),
            fmt::format("the weights of --init {}", folder)};
  }
  run.initialize_weights();
  return {fmt::format("starting at step 1: {} parameters in {}", run.layout().total_count(),
                      counted(session.world_size(), "rank")),
          "the initial weights"};
}

}  // namespace tessera
