#include "runtime/run/resume.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "collectives/mpi_control.h"
#include "kernels/base/error.h"
#include "kernels/base/file_status.h"
#include "kernels/base/hash.h"
#include "kernels/base/input_file.h"
#include "kernels/base/log.h"
#include "kernels/base/progress.h"
#include "model/huggingface.h"
#include "model/json_text.h"
#include "model/peft_folder.h"
#include "runtime/checkpoint/retention.h"
#include "runtime/launch/agree.h"
#include "runtime/launch/same_weights.h"
#include "runtime/launch/startup_check.h"
#include "runtime/run/local_run.h"
#include "runtime/run/option_checks.h"
#include "runtime/run/resume_compare.h"
#include "runtime/run/resume_search.h"
#include "runtime/run/run_length.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

std::string options_json(const RunConfig& options) {
  Json json = Json::object();
  for (const auto& [name, value] : options.texts.effective) {
    json[name] = value;
  }
  return json_text(json);
}

// The next step of rank 0's search, on every rank; empty: there is no step at all. Collective.
std::string next_folder(MpiSession& session, StepSearch& search, ReadRetry& retry) {
  const std::string mine = agree(session, [&]() -> std::string {
    if (session.rank() != 0) {
      return {};
    }
    const std::optional<StepFolder> step = search.next(retry);
    return step ? step->path.string() : std::string();
  });
  return session.control().gather_text(mine).front();
}

// Calls `read` on every rank. Where that proves damage on any of them, the reason, the same on
// every rank; every other failure is thrown, agreed. Collective.
template <typename Read>
std::optional<std::string> damage_found_by(MpiSession& session, const Read& read) {
  std::optional<Failure> damage;
  std::optional<Failure> other;
  try {
    read();
  } catch (const DamageError&) {
    damage = failure_of(std::current_exception());
  } catch (...) {
    other = failure_of(std::current_exception());
  }
  settle(session, other);
  try {
    settle(session, damage);
  } catch (const FormatError& error) {
    return error.message();
  }
  return std::nullopt;
}

// Goes on to the step before, loudly. Collective.
void pass_over(MpiSession& session, StepSearch& search, const std::string& damage) {
  agree(session, [&] {
    if (session.rank() == 0) {
      search.pass_over(damage);
    }
  });
}

// Behind the same path may lie another save: other mounts, or other working folders; or a copy that
// was changed, with the CHECKSUMS of what it holds now. Collective.
void require_same_save(MpiSession& session, const std::string& folder, const ManifestInfo& info,
                       std::uint64_t contents_hash) {
  const std::array same = {NamedValue{fmt::format("contents of {}", folder),
                                      fmt::format("step {}, save {}, contents {}", info.step,
                                                  info.save_id, hash_text(contents_hash))}};
  require_same_start(session, same);
}

// The next step of the search as a point to continue from. Collective.
std::optional<ResumePoint> next_point(MpiSession& session, const RunConfig& options,
                                      const RunIdentity& identity, StepSearch search) {
  ReadRetry retry = retry_of(options);
  const std::string folder = next_folder(session, search, retry);
  if (folder.empty()) {
    return std::nullopt;
  }
  std::uint64_t contents_hash = 0;
  ResumePoint point = agree(session, [&] {
    std::string fingerprint = retry(
        [&] { return session.rank() == 0 ? VerifiedSteps::fingerprint(folder) : std::string(); });
    const CheckpointReader reader(folder, retry);
    contents_hash = reader.contents_hash();
    return ResumePoint{folder, reader.info(), compare_run(reader.info(), folder, options, identity),
                       std::move(search), std::move(fingerprint)};
  });
  require_same_save(session, folder, point.info, contents_hash);
  return point;
}

void write_zeros(ShardState& shard, UnitId unit, StateArray array, Index begin, Index end) {
  if (begin < end) {
    const std::vector<float> zeros(static_cast<std::size_t>(end - begin));
    shard.write(unit, array, begin, {zeros.data(), DType::f32, Shape{end - begin}, Device{}});
  }
}

// The same of an array whose elements share scales: whole blocks at a time, in order, so that what
// is rounded does not depend on where a checkpoint's blocks end.
void read_blocks(CheckpointReader& reader, StateArray array, ShardState& shard,
                 std::span<const UnitSlice> wanted) {
  constexpr Index kPiece = Index{1} << 20U;  // elements
  std::vector<float> values;
  for (std::size_t unit = 0; unit < wanted.size(); ++unit) {
    const UnitSlice& slice = wanted[unit];
    for (Index begin = 0; begin < slice.count(); begin += kPiece) {
      const Index count = std::min(kPiece, slice.count() - begin);
      const Index least = least_elements(shard.state_layout().storage_of(array));
      values.assign(static_cast<std::size_t>((count + least - 1) / least * least), 0.0F);
      reader.read(array, slice.unit, slice.begin + begin,
                  std::span(values).first(static_cast<std::size_t>(count)));
      progress().beats.fetch_add(1, std::memory_order_relaxed);
      shard.write(static_cast<UnitId>(unit), array, begin,
                  {values.data(), DType::f32, Shape{std::ssize(values)}, Device{}});
    }
  }
}

// Fills this rank's slices of one array; padding, and what was not saved, become zero.
void read_array(CheckpointReader& reader, StateArray array, ShardState& shard) {
  const bool is_saved = reader.arrays().has(array);
  std::vector<UnitSlice> wanted;
  for (UnitId unit = 0; unit < shard.layout().unit_count(); ++unit) {
    const OptimizerShard range = shard.range(unit);
    const Index real = is_saved ? shard.real_count(unit) : 0;
    wanted.push_back(
        {shard.layout().unit(unit).name, range.param_start, range.param_start + real, 0});
    const Index least = least_elements(shard.state_layout().storage_of(array));
    write_zeros(shard, unit, array, (real + least - 1) / least * least, range.shard_size());
  }
  if (!is_saved) {
    return;
  }
  if (least_elements(shard.state_layout().storage_of(array)) > 1) {
    read_blocks(reader, array, shard, wanted);
    return;
  }
  reader.stream(array, wanted, [&](std::size_t unit, Index begin, std::span<const float> values) {
    progress().beats.fetch_add(1, std::memory_order_relaxed);
    shard.write(static_cast<UnitId>(unit), array, begin - wanted[unit].begin,
                {values.data(), DType::f32, Shape{std::ssize(values)}, Device{}});
  });
}

}  // namespace

void read_state(CheckpointReader& reader, ShardState& shard) {
  for (const StateArraySpec& spec : shard.numbers().arrays()) {
    read_array(reader, spec.array, shard);
  }
}

WorkDone done_by(const std::optional<ResumePoint>& point) {
  return point ? WorkDone{point->info.step, point->info.windows_taken} : WorkDone{};
}

RunConfig with_steps_of(const RunConfig& options, const RunIdentity& identity,
                        const std::optional<ResumePoint>& point) {
  return with_steps(options, identity.data_sequences, done_by(point));
}

std::optional<ResumePoint> choose_resume_point(MpiSession& session, const RunConfig& options,
                                               const RunIdentity& identity) {
  promote_local_saves(session, options);
  std::optional<StepSearch> search = agree(session, [&]() -> std::optional<StepSearch> {
    return session.rank() == 0 ? resume_search(options) : std::nullopt;
  });
  const bool is_fresh =
      session.control().gather_text(session.rank() == 0 && search ? "search" : "").front().empty();
  if (is_fresh) {
    return std::nullopt;
  }
  std::optional<ResumePoint> point =
      next_point(session, options, identity, search ? *std::move(search) : StepSearch({}, {}));
  if (!point && options.checkpoint.resume == ResumeKind::path) {
    throw_agreed({FormatError("", TESSERA_HERE).exit_status(),
                  fmt::format("--resume {}: there is no complete step in this folder",
                              options.checkpoint.resume_path)},
                 TESSERA_HERE);
  }
  return point;
}

void load_state(MpiSession& session, const RunConfig& options, const RunIdentity& identity,
                ResumePoint& point, TrainingRun& run) {
  for (;;) {
    const std::optional<std::string> damage = damage_found_by(session, [&] {
      ReadRetry retry = retry_of(options);
      CheckpointReader reader(point.folder, retry);
      read_state(reader, run.shard());
    });
    if (!damage) {
      break;
    }
    pass_over(session, point.search, *damage);
    // never empty: the one passed over is a step, and then none left is an error
    point = next_point(session, options, identity, std::move(point.search)).value();
  }
  run.trainer().continue_from({.step = point.info.step,
                               .updates = point.info.updates,
                               .skipped = point.info.skipped,
                               .sequences = point.info.windows_taken});
}

bool is_huggingface_folder(const std::filesystem::path& folder) {
  require_folder(folder, "the steps of a run, or config.json and the weights");
  return path_exists(folder / "config.json");
}

void require_same_model(const std::string& config_json, const std::string& source,
                        const TrainingRun& run) {
  const std::string difference = model_difference(config_json, to_config_json(run.config()));
  if (!difference.empty()) {
    throw ConfigError(fmt::format("--init {} holds another model than --model: {}; leave --model "
                                  "out to take it from there",
                                  source, difference),
                      TESSERA_HERE);
  }
}

namespace {

// Where the step lies that --init means: itself, or the newest one of a run.
StepSearch init_search(const std::string& source) {
  require_readable("--init", source, "the folder of a step, of a run, or of a Hugging Face model");
  require_no_peft_folder(source, fmt::format("--init {}", source));
  return {source, warn_passed_over};
}

std::filesystem::path init_step(const std::string& source) {
  ReadRetry retry;
  StepSearch search = init_search(source);
  const std::optional<StepFolder> step = search.next(retry);
  if (!step) {
    throw FormatError(
        fmt::format("--init {}: neither a step, nor a run with a complete step, nor a "
                    "Hugging Face folder with config.json",
                    source),
        TESSERA_HERE);
  }
  return step->path;
}

// A step of adapters is not a model to start from.
void refuse_adapters(const CheckpointReader& reader) {
  if (!reader.info().adapter_json.empty()) {
    throw ConfigError(
        fmt::format("--init {} holds adapters, not a model: `convert merge` makes a model of them "
                    "and their base, and `convert export --adapter` a folder for --init-adapter",
                    reader.folder().string()),
        TESSERA_HERE);
  }
}

void load_huggingface(const HuggingFaceFolder& theirs, const std::string& source,
                      TrainingRun& run) {
  require_same_model(to_config_json(theirs.config()), source, run);
  run.shard().initialize([&theirs](UnitId unit, Index begin, std::span<float> values) {
    theirs.read_unit(unit, begin, values);
  });
}

}  // namespace

std::filesystem::path init_folder(const std::string& source) {
  return is_huggingface_folder(source) ? std::filesystem::path(source) : init_step(source);
}

ModelConfig init_model(const std::string& source) {
  if (is_huggingface_folder(source) && is_nf4_folder(source)) {
    return Nf4Reader(source).config();
  }
  if (is_huggingface_folder(source)) {
    return read_config_json(std::filesystem::path(source) / "config.json");
  }
  const CheckpointReader reader(init_step(source));
  refuse_adapters(reader);
  return parse_config_json(reader.info().config_json, reader.folder().string());
}

InitWeights open_weights(const std::filesystem::path& folder) {
  InitWeights weights = {.folder = folder, .huggingface = nullptr, .nf4 = nullptr};
  if (is_huggingface_folder(folder) && is_nf4_folder(folder)) {
    weights.nf4 = std::make_unique<Nf4Reader>(folder);
  } else if (is_huggingface_folder(folder)) {
    weights.huggingface = std::make_unique<HuggingFaceFolder>(folder);
  }
  return weights;
}

std::optional<TokenizerFacts> init_tokenizer(const InitWeights& weights) {
  const bool is_theirs = weights.huggingface || weights.nf4;
  return tokenizer_of_folder(is_theirs ? weights.folder : run_folder_of(weights.folder),
                             fmt::format("--init {}", weights.folder.string()));
}

std::filesystem::path load_weights(MpiSession& session, const RunConfig& options,
                                   const InitWeights& weights, TrainingRun& run) {
  if (weights.huggingface) {
    agree(session, [&] { load_huggingface(*weights.huggingface, weights.folder.string(), run); });
    require_same_weights(session, *weights.huggingface, weights.folder.string(), run.shard());
    return weights.folder;
  }
  StepSearch search = agree(session, [&] { return init_search(options.model.init); });
  std::string folder = weights.folder.string();
  for (;;) {
    ReadRetry retry = retry_of(options);
    std::uint64_t contents_hash = 0;
    const ManifestInfo info = agree(session, [&] {
      const CheckpointReader reader(folder, retry);
      refuse_adapters(reader);
      contents_hash = reader.contents_hash();
      return reader.info();
    });
    require_same_save(session, folder, info, contents_hash);
    const std::optional<std::string> damage = damage_found_by(session, [&] {
      require_same_model(info.config_json, folder, run);
      CheckpointReader reader(folder, retry);
      run.shard().initialize([](UnitId, Index, std::span<float> values) {
        std::fill(values.begin(), values.end(), 0.0F);
      });
      read_array(reader, StateArray::master, run.shard());
    });
    if (!damage) {
      return folder;
    }
    // The search begins at the newest step: this one, or one that has been saved since.
    const std::string damaged = std::exchange(folder, next_folder(session, search, retry));
    if (folder == damaged) {
      pass_over(session, search, *damage);
      folder = next_folder(session, search, retry);
    }
  }
}

ManifestInfo manifest_info(const RunConfig& options, const RunIdentity& identity,
                           const TrainingPosition& position, const std::string& run_id,
                           Index epoch) {
  ManifestInfo info;
  info.run_id = run_id;
  info.step = position.step;
  info.updates = position.updates;
  info.skipped = position.skipped;
  info.micro_batch = options.batch.micro_batch;
  info.reduce_group = options.parallel.reduce_group;
  info.flce_chunk_rows = identity.chunk_rows;
  info.attention_slice = static_cast<Index>(options.compute.attention_slice_bytes);
  info.gemm_table_hash = identity.gemm_table_hash;
  info.config_json = identity.config_json;
  info.config_hash = hash_text(xxh3_64(bytes_of(identity.config_json)));
  info.data_hash = identity.data_hash;
  info.adapter_json = identity.adapter_json;
  info.base_model_hash = identity.base_hash;
  info.options_json = options_json(options);
  info.start_json = identity.start_json;
  info.windows_taken = position.sequences;
  info.epoch = epoch;
  info.seed = options.seed;
  info.optimizer = options.optimizer.rule.kind;
  if (info.optimizer == OptimizerKind::adamw) {
    info.moments = options.optimizer.rule.adamw.moments;
  }
  return info;
}

void leave_abandoned_branch(const std::filesystem::path& run_folder, Index step) {
  ReadRetry retry;
  for (const SupersededStep& each : supersede_after(run_folder, step, retry)) {
    const std::string why = each.state == StepState::complete
                                ? fmt::format("is later than step {}, which is continued", step)
                                : fmt::format("is {} and was passed over", state_name(each.state));
    log_line(LogLevel::warning,
             fmt::format("{} {}: renamed to {}", each.old_name, why, each.new_name));
  }
}

}  // namespace tessera
