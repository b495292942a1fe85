// Names, numbers and tables of a checkpoint, without any file: which elements a shard holds, where
// a parameter lies, what the manifest says. The format itself is in format.md.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/hash.h"
#include "kernels/device/tensor_view.h"
#include "optim/update_rule.h"

namespace tessera {

class ParamLayout;

inline constexpr std::string_view kCheckpointFormat = "tessera-checkpoint";
/// What is written; versions from kOldestVersion on are read.
inline constexpr Index kCheckpointVersion = 2;
inline constexpr Index kOldestVersion = 1;
/// Data is checked in blocks of this size: the last one of a dataset may be shorter.
inline constexpr std::uint64_t kBlockBytes = std::uint64_t{16} << 20U;
inline constexpr Index kBlockElements = static_cast<Index>(kBlockBytes / sizeof(float));

inline constexpr std::string_view kManifestName = "manifest.h5";
inline constexpr std::string_view kChecksumsName = "CHECKSUMS";
inline constexpr std::string_view kLatestName = "LATEST";
inline constexpr std::string_view kBestName = "BEST";

/// Group of an array's named virtual datasets: "/params" of the weights, "/optim/exp_avg", ...
[[nodiscard]] std::string array_group(StateArray array);

/// A named tensor. A tied one (`alias_of` not empty) lies where the other lies.
struct ParamRow {
  std::string name;  // "block.3.attention.qkv"
  std::string unit;  // "block.3"
  Index offset;      // first element within the unit
  Shape shape;
  std::string alias_of;  // "embedding.weight", or empty
  [[nodiscard]] Index count() const noexcept { return shape.count(); }
};

struct UnitRow {
  std::string name;
  Index count;  // elements, without padding
};

/// What a model's parameters are, in layout order.
struct ParamTable {
  std::vector<UnitRow> units;
  std::vector<ParamRow> params;  // aliases last
  /// Throws FormatError if there is none of this name.
  [[nodiscard]] const ParamRow& find(std::string_view param_name) const;
  [[nodiscard]] const UnitRow& unit(std::string_view unit_name) const;
  [[nodiscard]] Index total_count() const noexcept;  // elements, each once
};
[[nodiscard]] ParamTable param_table(const ParamLayout& layout);

/// Elements [begin, end) of a unit, which are stored at element `offset` of the shard's arrays.
struct UnitSlice {
  std::string unit;
  Index begin;
  Index end;
  Index offset;
  [[nodiscard]] Index count() const noexcept { return end - begin; }
  friend bool operator==(const UnitSlice&, const UnitSlice&) = default;
};

/// What one rank's shard holds: a slice of each unit, in layout order; a slice may be empty.
struct ShardSpec {
  Index rank = 0;
  Index world_size = 1;
  std::vector<UnitSlice> slices;
  [[nodiscard]] Index count() const noexcept;  // elements of each array
  friend bool operator==(const ShardSpec&, const ShardSpec&) = default;
};
/// The slices that OptimizerShard gives: of a unit padded to W * S elements, S a multiple of 1024,
/// rank r owns [r * S, (r + 1) * S); what is beyond the unit's real elements is not saved.
[[nodiscard]] ShardSpec shard_spec(std::span<const UnitRow> units, Index rank, Index world_size);

/// "shard-00003-of-00008.h5"
[[nodiscard]] std::string shard_file_name(Index rank, Index world_size);
/// "step-00000042"
[[nodiscard]] std::string step_folder_name(Index step);
/// The step of a name that `step_folder_name` gives, and of no other.
[[nodiscard]] std::optional<Index> step_of_folder_name(std::string_view name);
/// A random (version 4) UUID.
[[nodiscard]] std::string new_uuid();

/// Which save a file belongs to.
struct SaveIdentity {
  std::string save_id;  // a UUID
  Index step = 0;       // steps completed
};

/// Everything about a checkpoint that is not an array. Texts may be empty where there is nothing.
struct ManifestInfo {
  Index version = kCheckpointVersion;
  std::string save_id;
  std::string run_id;
  std::string parent_save_id;  // what this run continued from
  Index step = 0;              // steps completed
  Index updates = 0;           // steps that changed parameters
  Index skipped = 0;           // steps whose gradient was not finite
  Index world_size = 1;
  Index micro_batch = 0;
  Index reduce_group = 0;
  Index flce_chunk_rows = 0;
  Index attention_slice = 0;
  std::string gemm_table_hash;
  std::string config_json;  // the model, as in Hugging Face's config.json
  std::string config_hash;
  std::string data_hash;
  std::string options_json;  // the effective options of the run
  Index windows_taken = 0;   // by all ranks, since the start
  Index epoch = 0;
  std::uint64_t seed = 0;
  /// None: weights alone (`convert import`), whose other arrays read as zeros.
  std::optional<OptimizerKind> optimizer = OptimizerKind::adamw;
  MomentType moments = MomentType::f32;  // in what the run stores them; the files hold f32
  Index nonfinite_params = 0;            // set by the commit, from the shards
  std::string evaluations_json;          // evaluations.h; empty: none was made at this step
  /// The start that saved it: command, build, host, device, libraries. Empty: not known.
  std::string start_json;
  /// Where the arrays are those of adapters beside a frozen base: which (adapter_config.h), and the
  /// base's content hash (optim/frozen_params.h). Both empty: the arrays are the whole model's.
  std::string adapter_json;
  std::string base_model_hash;

  /// The arrays that are saved: the optimizer's, or the weights alone.
  [[nodiscard]] const StateLayout& arrays() const;
  /// Those that a shard's file has: in version 1 always AdamW's, empty where they are not saved.
  [[nodiscard]] const StateLayout& file_arrays() const;
  friend bool operator==(const ManifestInfo&, const ManifestInfo&) = default;
};

/// Bytes of a shard's array in its file.
struct ByteRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  [[nodiscard]] std::uint64_t end() const noexcept { return offset + bytes; }
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

/// The bytes of a file that are in none of the ranges, which may come in any order but do not
/// overlap.
[[nodiscard]] std::vector<ByteRange> bytes_outside(std::span<const ByteRange> ranges,
                                                   std::uint64_t file_bytes);

/// What rank 0 must know of a shard that has been written, to commit it.
struct ShardSummary {
  Index rank = 0;
  std::uint64_t file_bytes = 0;
  std::vector<ByteRange> arrays;  // in the order of the saved arrays
  Hash128 header_hash;            // of all bytes outside the arrays
  std::uint64_t blocks_hash = 0;  // XXH3-64 of the block checksums of the arrays
  std::uint64_t spec_hash = 0;    // of the slices
  std::vector<Index> nonfinite;   // numbers that are not finite, of each array

  friend bool operator==(const ShardSummary&, const ShardSummary&) = default;
  /// One line of text, to send to rank 0.
  [[nodiscard]] std::string to_text() const;
  /// Throws FormatError.
  [[nodiscard]] static ShardSummary from_text(std::string_view text);
};
[[nodiscard]] std::uint64_t hash_of(const ShardSpec& spec);

/// Elements begin, begin + 1, ... of a parameter, which are stored at element `offset` of a shard's
/// arrays.
struct ParamRun {
  std::size_t param;  // in ParamTable::params
  Index begin;
  Index count;
  Index offset;
};
/// What a shard's arrays hold, front to back and without gaps; aliases are left out.
[[nodiscard]] std::vector<ParamRun> param_runs(const ParamTable& table, const ShardSpec& spec);
/// The parts of `runs` (of param_runs) that are in elements [begin, end) of the arrays.
[[nodiscard]] std::vector<ParamRun> runs_between(std::span<const ParamRun> runs, Index begin,
                                                 Index end);

/// A box of a tensor, and the run of elements it is in the flattened tensor.
struct Box {
  std::vector<Index> start;
  std::vector<Index> count;
  Index begin;  // first element of the run
};
/// Cuts elements [begin, end) of the flattened tensor into boxes, at most 2 * rank - 1, in order.
[[nodiscard]] std::vector<Box> cut_into_boxes(const Shape& shape, Index begin, Index end);

/// "block.3.mlp.down, block.4.attention.norm and 2 more": the parameters with elements of a shard's
/// arrays [begin, end). For messages.
[[nodiscard]] std::string params_in_range(const ParamTable& table, const ShardSpec& spec,
                                          Index begin, Index end);

/// Where a save stands: for tests that end it there.
enum class SavePhase : std::uint8_t {
  shard_created,
  shard_written,
  shard_synced,
  manifest_written,
  checksums_written,
  folder_synced,
  renamed,
  run_synced,
  latest_written,
  latest_renamed,
  best_renamed,
  trash_renamed,
  trash_removed,
};
inline constexpr int kSavePhaseCount = 13;
/// Called as each phase has been reached. Empty outside tests. What it throws is a failed save.
using SaveHook = std::function<void(SavePhase)>;

}  // namespace tessera
