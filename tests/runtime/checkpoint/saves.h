// Checkpoints with known content, written by any number of simulated ranks in one process.
#pragma once

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/base/file.h"
#include "model/model_config.h"
#include "model/param_layout.h"
#include "runtime/checkpoint/local_saves.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/checkpoint/shard_writer.h"
#include "runtime/checkpoint/writer.h"

namespace tessera::test {

/// A model of 4 units, whose sizes are not multiples of anything.
inline ModelConfig small_config(Index vocab = 37, Index width = 24) {
  ModelConfig config;
  config.vocab_size = vocab;
  config.hidden_size = width;
  config.intermediate_size = 50;
  config.num_layers = 2;
  config.num_heads = 3;
  config.num_kv_heads = 1;
  config.head_dim = 10;
  return config;
}

inline ParamTable small_table(Index vocab = 37, Index width = 24) {
  return param_table(ParamLayout(small_config(vocab, width)));
}

/// The number at `element` of a unit in a save of step `step`: all differ, of both signs, some
/// subnormal, some negative zeros.
inline float value_at(StateArray array, std::size_t unit, Index element, Index step = 0) {
  std::uint64_t bits = static_cast<std::uint64_t>(element) * 0x9E3779B97F4A7C15U +
                       static_cast<std::uint64_t>(unit) * 0xD1B54A32D192ED03U +
                       static_cast<std::uint64_t>(array) * 0x8CB92BA72F3D8DD7U +
                       static_cast<std::uint64_t>(step) * 0xA24BAED4963EE407U;
  bits ^= bits >> 29U;
  bits *= 0xBF58476D1CE4E5B9U;
  auto word = static_cast<std::uint32_t>(bits >> 32U);
  if ((word & 0x7F800000U) == 0x7F800000U) {
    word &= 0x807FFFFFU;  // finite
  }
  return std::bit_cast<float>(word);
}

inline std::vector<float> values_of(const ParamTable& table, StateArray array,
                                    const UnitSlice& slice, Index step) {
  std::size_t unit = 0;
  while (table.units[unit].name != slice.unit) {
    ++unit;
  }
  std::vector<float> values;
  for (Index i = slice.begin; i < slice.end; ++i) {
    values.push_back(value_at(array, unit, i, step));
  }
  return values;
}

struct SaveOptions {
  Index step = 42;
  Index world_size = 2;
  std::optional<OptimizerKind> optimizer = OptimizerKind::adamw;
  MomentType moments = MomentType::f32;
  ParamTable table = small_table();
  RetentionOptions retention{1000, 0};
  SaveHook hook = {};
  bool is_poisoned = false;  // the first parameter's first number is NaN
  Index piece = 1000;        // elements of one call of `write`
  std::string run_id = "3f0f5a3a-0000-4000-8000-000000000001";
  std::vector<SavedEvaluation> evaluations = {};
  std::string options_json = R"({"lr": 0.0003, "out": "runs/é %d"})";
  std::string start_json =
      R"({"command": "mpirun -np 2 train --out 'runs/é %d'", "libraries": []})";
};

inline ManifestInfo info_of(const SaveOptions& options) {
  ManifestInfo info;
  info.save_id = new_uuid();
  info.run_id = options.run_id;
  info.step = options.step;
  info.updates = options.step;
  info.world_size = options.world_size;
  info.micro_batch = 2;
  info.reduce_group = 1;
  info.flce_chunk_rows = 1024;
  info.attention_slice = 8;
  info.gemm_table_hash = "0123456789abcdef";
  // the model whose table this is; the manifest is compared with it
  const ParamTable model = small_table();
  const bool is_model = options.table.params.size() == model.params.size() &&
                        options.table.total_count() == model.total_count();
  info.config_json = is_model ? to_config_json(small_config()) : std::string();
  info.config_hash = "00000000000000000000000000000001";
  info.data_hash = "00000000000000000000000000000002";
  info.options_json = options.options_json;
  info.start_json = options.start_json;
  info.windows_taken = options.step * 8;
  info.seed = 0xFFFFFFFFFFFFFFF0U;
  info.optimizer = options.optimizer;
  info.moments = options.moments;
  info.evaluations_json = evaluations_text(options.evaluations);
  return info;
}

/// One rank's part: the arrays interleaved by pieces, as a sweep over the optimizer's pages gives
/// them.
inline ShardSummary write_shard(const std::filesystem::path& folder, const SaveIdentity& identity,
                                const SaveOptions& options, Index rank) {
  const ShardSpec spec = shard_spec(options.table.units, rank, options.world_size);
  const StateLayout arrays = info_of(options).arrays();
  ShardWriter writer({folder, identity, spec, arrays, options.hook});
  writer.create();
  for (const UnitSlice& slice : spec.slices) {
    for (Index begin = slice.begin; begin < slice.end; begin += options.piece) {
      const UnitSlice piece{slice.unit, begin, std::min(begin + options.piece, slice.end), 0};
      for (const StateArraySpec& saved : arrays.arrays()) {
        const StateArray array = saved.array;
        std::vector<float> values = values_of(options.table, array, piece, options.step);
        if (options.is_poisoned && array == StateArray::master &&
            slice.offset + begin == slice.begin) {
          values[0] = std::bit_cast<float>(0x7FC00001U);
        }
        writer.write(array, slice.offset + begin - slice.begin, values);
      }
    }
  }
  return writer.finish();
}

/// All shards of a save below its temporary folder, for `commit_checkpoint` or `place_checkpoint`.
inline CommitRequest written(const std::filesystem::path& run, const SaveOptions& options) {
  const ManifestInfo info = info_of(options);
  const SaveIdentity identity{info.save_id, info.step};
  make_run_folder(run);
  CommitRequest request{
      run, make_save_folder(run, identity), info, options.table, {}, options.retention};
  try {
    for (Index rank = options.world_size - 1; rank >= 0; --rank) {  // they finish in any order
      const ShardSummary summary = write_shard(request.save_folder, identity, options, rank);
      request.shards.push_back(ShardSummary::from_text(summary.to_text()));
    }
  } catch (...) {
    remove_folder(request.save_folder);
    throw;
  }
  return request;
}

/// A whole save. What a rank throws, it throws, after the temporary folder has been removed.
inline CommitResult save(const std::filesystem::path& run, const SaveOptions& options) {
  return commit_checkpoint(written(run, options), options.hook);
}

/// A local save that stands becomes a step of `run`, as Promotion does it; `local` is what was placed.
inline CommitResult promote(CommitRequest local, const std::filesystem::path& run,
                            const SaveHook& hook = {}, const std::function<void()>& moved = {}) {
  const SaveIdentity identity = {local.info.save_id, local.info.step};
  const std::filesystem::path step = local.run_folder / step_folder_name(identity.step);
  for (Index rank = 0; rank < local.info.world_size; ++rank) {
    local.save_folder = join_save_folder(run, identity);
    copy_local_shard({identity.step, identity.save_id, rank, local.info.world_size, step},
                     local.save_folder, moved);
  }
  local.run_folder = run;
  return commit_checkpoint(local, hook);
}

/// "": all numbers of the checkpoint are those of `values_of`, bit by bit, when W ranks each read
/// their slices; or what differs.
inline std::string compare(CheckpointReader& reader, const ParamTable& table, Index world_size,
                           Index step) {
  for (Index rank = 0; rank < world_size; ++rank) {
    for (const UnitSlice& slice : shard_spec(table.units, rank, world_size).slices) {
      for (const StateArraySpec& spec : state_layout(OptimizerKind::adamw).arrays()) {
        const StateArray array = spec.array;
        std::vector<float> expected = values_of(table, array, slice, step);
        if (!reader.arrays().has(array)) {
          expected.assign(expected.size(), 0.0F);
        }
        std::vector<float> values(expected.size(), -1.0F);
        reader.read(array, slice.unit, slice.begin, values);
        for (std::size_t i = 0; i < values.size(); ++i) {
          if (std::bit_cast<std::uint32_t>(values[i]) !=
              std::bit_cast<std::uint32_t>(expected[i])) {
            return std::string(array_name(array)) + " of " + slice.unit + " at " +
                   std::to_string(slice.begin + static_cast<Index>(i)) + ": " +
                   std::to_string(values[i]) + " is not " + std::to_string(expected[i]);
          }
        }
      }
    }
  }
  return {};
}

/// Whether every byte of a checkpoint is right.
inline bool damage_free(const std::filesystem::path& folder) {
  return CheckpointReader(folder).find_damage().empty();
}

/// Without pauses: every read has one attempt.
inline StepFolder check_step(const std::filesystem::path& folder, CheckDepth depth) {
  ReadRetry none(std::chrono::milliseconds{0});
  return tessera::check_step(folder, depth, none);
}
inline std::vector<StepFolder> find_steps(const std::filesystem::path& run, CheckDepth depth) {
  ReadRetry none(std::chrono::milliseconds{0});
  return tessera::find_steps(run, depth, none);
}

/// What a run would continue from: the step that the search gives, whose every byte is right.
inline std::optional<StepFolder> newest_whole(
    const std::filesystem::path& run, const StepSearch::Report& report = [](const StepFolder&) {}) {
  ReadRetry none(std::chrono::milliseconds{0});
  StepSearch search(run, report);
  while (const std::optional<StepFolder> step = search.next(none)) {
    StepFolder found = tessera::check_step(step->path, CheckDepth::blocks, none);
    if (found.state == StepState::complete) {
      return found;
    }
    search.pass_over(found.reason);
  }
  return std::nullopt;
}

inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void spill(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace tessera::test
