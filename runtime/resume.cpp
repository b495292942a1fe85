#include "runtime/resume.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <xxhash.h>

#include "collectives/mpi_control.h"
#include "kernels/device/error.h"
#include "kernels/device/log.h"
#include "kernels/device/progress.h"
#include "model/huggingface.h"
#include "model/json_text.h"
#include "runtime/agree.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/startup_check.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

std::string options_json(const TrainOptions& options) {
  Json json = Json::object();
  for (const auto& [name, value] : options.effective) {
    json[name] = value;
  }
  return json.dump();
}

// Options whose change moves bits without changing what is computed.
bool changes_bits(const std::string& name) {
  constexpr std::array kNames = {"micro-batch",
                                 "global-batch",
                                 "device",
                                 "precision",
                                 "threads",
                                 "zero",
                                 "sum-group",
                                 "reduce",
                                 "logits-bytes",
                                 "attention",
                                 "attention-slice-bytes",
                                 "fast-attention"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

// Options that the model or the data hash speaks for.
bool compared_otherwise(const std::string& name) {
  constexpr std::array kNames = {"model", "data", "init"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

void refuse_other_model(const ManifestInfo& info, const std::filesystem::path& folder,
                        const RunIdentity& identity) {
  const Json theirs = parse_json_line(info.config_json);
  const Json ours = Json::parse(identity.config_json);
  if (theirs == ours) {
    return;
  }
  for (const auto& [key, value] : ours.items()) {
    const bool has = theirs.is_object() && theirs.contains(key);
    if (!has || theirs.at(key) != value) {
      throw ConfigError(
          fmt::format("{} holds another model: its {} is {}, this run's is {}; give another --out, "
                      "or --init to start from its weights",
                      folder.string(), key, has ? theirs.at(key).dump() : "missing", value.dump()),
          TESSERA_HERE);
    }
  }
  throw ConfigError(fmt::format("{} holds another model", folder.string()), TESSERA_HERE);
}

// Throws where this run may not continue that step; else returns what the user should know.
std::vector<std::string> compare(const ManifestInfo& info, const std::filesystem::path& folder,
                                 const TrainOptions& options, const RunIdentity& identity) {
  refuse_other_model(info, folder, identity);
  std::vector<std::string> remarks;
  if (!info.data_hash.empty() && info.data_hash != identity.data_hash) {
    if (!options.allow_data_change) {
      throw ConfigError(
          fmt::format("{} was trained on another order of data (files, weights, --seq "
                      "or --seed differ): give the same, or --allow-data-change",
                      folder.string()),
          TESSERA_HERE);
    }
    remarks.push_back(fmt::format("the data order is another one from step {} on", info.step + 1));
  }
  if (info.gemm_table_hash != identity.gemm_table_hash) {
    const auto named = [](const std::string& hash) {
      return hash.empty() ? std::string("none") : hash;
    };
    remarks.push_back(fmt::format(
        "the table of --tune-gemm was {} and is {} from step {} on: the results have other bits",
        named(info.gemm_table_hash), named(identity.gemm_table_hash), info.step + 1));
  }
  const Json before = parse_json_line(info.options_json);
  for (const auto& [name, value] : options.effective) {
    if (!before.is_object() || !before.contains(name) || compared_otherwise(name)) {
      continue;
    }
    const std::string old = before.at(name).is_string() ? before.at(name).get<std::string>() : "";
    if (old != value) {
      remarks.push_back(fmt::format("--{} was {} and is {} from step {} on{}", name, old, value,
                                    info.step + 1,
                                    changes_bits(name) ? ": the results have other bits" : ""));
    }
  }
  return remarks;
}

// Rank 0's choice as text for all ranks: empty for a fresh run.
std::string choose_folder(const TrainOptions& options, std::optional<Index> highest) {
  const auto warn = [](const StepFolder& step) {
    log_line(LogLevel::warning, fmt::format("passing over {}: {} ({})", step.path.string(),
                                            state_name(step.state), step.reason));
  };
  if (options.resume == ResumeKind::path) {
    const std::filesystem::path path = options.resume_path;
    require_readable("--resume", path, "auto, none, or the folder of a step or of a run");
    if (!is_step_folder(path)) {
      const auto found = latest_verified(path, CheckDepth::headers, warn, highest);
      if (!found) {
        throw FormatError(
            fmt::format("--resume {}: there is no complete step in this folder", path.string()),
            TESSERA_HERE);
      }
      return found->path.string();
    }
    if (const StepFolder step = check_step(path, CheckDepth::headers);
        step.state != StepState::complete) {
      throw FormatError(
          fmt::format("--resume {}: {} ({})", path.string(), state_name(step.state), step.reason),
          TESSERA_HERE);
    }
    return path.string();
  }
  const std::filesystem::path out = options.out;
  if (!std::filesystem::exists(out)) {
    return {};
  }
  if (options.resume == ResumeKind::none) {
    for (const StepFolder& step : find_steps(out, CheckDepth::files)) {
      if (step.state != StepState::superseded && step.state != StepState::temporary) {
        throw ConfigError(fmt::format("--resume none: {} holds steps of a run already ({}); give "
                                      "another --out, or --resume auto to continue it",
                                      out.string(), step.path.filename().string()),
                          TESSERA_HERE);
      }
    }
    return {};
  }
  const auto found = latest_verified(out, CheckDepth::headers, warn, highest);
  if (!found && !find_steps(out, CheckDepth::files).empty()) {
    const auto steps = find_steps(out, CheckDepth::files);
    const bool any = std::any_of(steps.begin(), steps.end(), [](const StepFolder& step) {
      return step.state == StepState::damaged || step.state == StepState::incomplete;
    });
    if (any) {
      throw FormatError(fmt::format("{} holds steps, but none that is complete: look at it with "
                                    "inspect, or give another --out",
                                    out.string()),
                        TESSERA_HERE);
    }
  }
  return found ? found->path.string() : std::string();
}

std::optional<ResumePoint> choose_below(MpiSession& session, const TrainOptions& options,
                                        const RunIdentity& identity, std::optional<Index> highest) {
  const std::string mine = agree(session, [&]() -> std::string {
    return session.rank() == 0 ? choose_folder(options, highest) : std::string();
  });
  const std::string folder = session.control().gather_text(mine).front();
  if (folder.empty()) {
    return std::nullopt;
  }
  ResumePoint point = agree(session, [&] {
    const CheckpointReader reader(folder);
    return ResumePoint{folder, reader.info(), compare(reader.info(), folder, options, identity)};
  });
  // Behind the same path may lie another save: other mounts, or other working folders.
  const std::array same = {
      NamedValue{fmt::format("contents of {}", folder),
                 fmt::format("step {}, save {}", point.info.step, point.info.save_id)}};
  require_same_start(session, same);
  return point;
}

CheckpointArray checkpoint_array(StateArray array) {
  return static_cast<CheckpointArray>(static_cast<std::uint8_t>(array));
}

void write_zeros(ShardState& shard, UnitId unit, StateArray array, Index begin, Index end) {
  if (begin < end) {
    const std::vector<float> zeros(static_cast<std::size_t>(end - begin));
    shard.write(unit, array, begin, {zeros.data(), DType::f32, Shape{end - begin}, Device{}});
  }
}

// Fills this rank's slices of one array; padding, and moments that were not saved, become zero.
void read_array(CheckpointReader& reader, StateArray array, ShardState& shard) {
  const bool is_saved = array == StateArray::master || reader.has_moments();
  std::vector<UnitSlice> wanted;
  for (UnitId unit = 0; unit < shard.layout().unit_count(); ++unit) {
    const OptimizerShard range = shard.range(unit);
    const Index real = is_saved ? shard.real_count(unit) : 0;
    wanted.push_back(
        {shard.layout().unit(unit).name, range.param_start, range.param_start + real, 0});
    write_zeros(shard, unit, array, real, range.shard_size());
  }
  if (!is_saved) {
    return;
  }
  reader.stream(checkpoint_array(array), wanted,
                [&](std::size_t unit, Index begin, std::span<const float> values) {
                  progress().beats.fetch_add(1, std::memory_order_relaxed);
                  shard.write(static_cast<UnitId>(unit), array, begin - wanted[unit].begin,
                              {values.data(), DType::f32, Shape{std::ssize(values)}, Device{}});
                });
}

}  // namespace

void read_state(CheckpointReader& reader, ShardState& shard) {
  for (const StateArray array : kStateArrays) {
    read_array(reader, array, shard);
  }
}

std::optional<ResumePoint> choose_resume_point(MpiSession& session, const TrainOptions& options,
                                               const RunIdentity& identity) {
  return choose_below(session, options, identity, std::nullopt);
}

void load_state(MpiSession& session, const TrainOptions& options, const RunIdentity& identity,
                ResumePoint& point, TrainingRun& run) {
  for (;;) {
    try {
      agree(session, [&] {
        CheckpointReader reader(point.folder);
        read_state(reader, run.shard());
      });
      break;
    } catch (const FormatError& error) {
      // Every rank has this error. An automatic choice goes back to the step before.
      if (options.resume != ResumeKind::automatic || point.info.step == 0) {
        throw;
      }
      if (session.rank() == 0) {
        log_line(LogLevel::warning,
                 fmt::format("passing over {}: {}", point.folder.string(), error.message()));
      }
      const auto before = choose_below(session, options, identity, point.info.step - 1);
      if (!before) {
        throw;
      }
      point = *before;
    }
  }
  run.trainer().continue_from({.step = point.info.step,
                               .updates = point.info.updates,
                               .skipped = point.info.skipped,
                               .windows = point.info.windows_taken});
}

bool is_huggingface_folder(const std::filesystem::path& folder) {
  return std::filesystem::exists(folder / "config.json");
}

namespace {

void require_same_model(const std::string& config_json, const std::string& source,
                        const TrainingRun& run) {
  if (parse_json_line(config_json) != Json::parse(to_config_json(run.config()))) {
    throw ConfigError(
        fmt::format("--init {} holds another model than --model: leave --model out to "
                    "take it from there",
                    source),
        TESSERA_HERE);
  }
}

// The step that --init means: itself, or the newest complete one of a run.
std::filesystem::path init_step(const std::string& source) {
  require_readable("--init", source, "the folder of a step, of a run, or of a Hugging Face model");
  if (is_step_folder(source)) {
    return source;
  }
  const auto found = latest_verified(source, CheckDepth::headers, [](const StepFolder&) {});
  if (!found) {
    throw FormatError(
        fmt::format("--init {}: neither a step, nor a run with a complete step, nor a "
                    "Hugging Face folder with config.json",
                    source),
        TESSERA_HERE);
  }
  return found->path;
}

}  // namespace

std::filesystem::path init_folder(const std::string& source) {
  return is_huggingface_folder(source) ? std::filesystem::path(source) : init_step(source);
}

ModelConfig init_model(const std::string& source) {
  if (is_huggingface_folder(source)) {
    return read_config_json(std::filesystem::path(source) / "config.json");
  }
  const CheckpointReader reader(init_step(source));
  return parse_config_json(reader.info().config_json, reader.folder().string());
}

InitWeights open_weights(const std::filesystem::path& folder) {
  return {folder, is_huggingface_folder(folder) ? std::make_unique<HuggingFaceFolder>(folder)
                                                : std::unique_ptr<HuggingFaceFolder>()};
}

std::optional<TokenizerFacts> init_tokenizer(const InitWeights& weights) {
  return tokenizer_of_folder(weights.huggingface ? weights.folder : run_folder_of(weights.folder),
                             fmt::format("--init {}", weights.folder.string()));
}

void load_weights(MpiSession& session, const InitWeights& weights, TrainingRun& run) {
  const std::string source = weights.folder.string();
  agree(session, [&] {
    if (weights.huggingface) {
      const HuggingFaceFolder& theirs = *weights.huggingface;
      require_same_model(to_config_json(theirs.config()), source, run);
      run.shard().initialize([&theirs](UnitId unit, Index begin, std::span<float> values) {
        theirs.read_unit(unit, begin, values);
      });
      return;
    }
    CheckpointReader reader(weights.folder);
    require_same_model(reader.info().config_json, source, run);
    run.shard().initialize([](UnitId, Index, std::span<float> values) {
      std::fill(values.begin(), values.end(), 0.0F);
    });
    read_array(reader, StateArray::master, run.shard());
  });
}

ManifestInfo manifest_info(const TrainOptions& options, const RunIdentity& identity,
                           const TrainingPosition& position, const std::string& run_id,
                           Index epoch) {
  ManifestInfo info;
  info.run_id = run_id;
  info.step = position.step;
  info.updates = position.updates;
  info.skipped = position.skipped;
  info.micro_batch = options.micro_batch;
  info.sum_group = options.sum_group;
  info.flce_chunk_rows = identity.chunk_rows;
  info.attention_slice = static_cast<Index>(options.attention_slice_bytes);
  info.gemm_table_hash = identity.gemm_table_hash;
  info.config_json = identity.config_json;
  info.config_hash =
      fmt::format("{:016x}", XXH3_64bits(identity.config_json.data(), identity.config_json.size()));
  info.data_hash = identity.data_hash;
  info.options_json = options_json(options);
  info.windows_taken = position.windows;
  info.epoch = epoch;
  info.seed = options.seed;
  info.rng_counter = static_cast<std::uint64_t>(position.windows);
  return info;
}

void leave_abandoned_branch(const std::filesystem::path& run_folder, Index step) {
  for (const auto& [old_name, new_name] : supersede_after(run_folder, step)) {
    log_line(LogLevel::warning,
             fmt::format("{} belongs to a branch that this run leaves: renamed to {}", old_name,
                         new_name));
  }
}

}  // namespace tessera
