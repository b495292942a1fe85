#include "runtime/checkpoint/manifest.h"

#include <algorithm>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/base/error.h"
#include "runtime/checkpoint/manifest_check.h"
#include "runtime/hdf5/hdf5_document.h"

namespace tessera {
namespace {

[[noreturn]] void refuse(const std::string& name, std::string_view what, SourceLocation where) {
  refuse_manifest(name, what, where);
}

constexpr std::string_view kNone = "none";

// Only where there are any.
constexpr const char* kEvaluations = "evaluations_json";
constexpr const char* kStart = "start_json";

// What shapes a run's bits and no build uses yet (format.md): "none" is written, and all that is
// read.
constexpr std::array kReserved = {"precision_recipe", "attention_tile", "packing_version"};
// Of checkpoints of adapters: the second only there.
constexpr const char* kBaseHash = "base_model_hash";
constexpr const char* kAdapters = "adapter_json";

std::string optimizer_text(std::optional<OptimizerKind> optimizer) {
  return std::string(optimizer ? optimizer_name(*optimizer) : kNone);
}

// How the run stores the moments.
std::string moments_text(const ManifestInfo& info) {
  return std::string(info.optimizer ? moment_name(info.moments) : kNone);
}

// Of moments in fewer bits than f32: the run's.
std::string rounding_seed_text(const ManifestInfo& info) {
  return info.moments == MomentType::f32 ? std::string(kNone) : std::to_string(info.seed);
}

// One row of /arrays: texts, and elements that share a scale of the first and of the second level.
struct ArrayRow {
  std::string name;
  std::string dtype;
  std::string code = std::string(kNone);
  Index block = 0;
  std::string scale_dtype = std::string(kNone);
  Index scale_block = 0;
  std::string scale2_dtype = std::string(kNone);
};

ArrayRow row_of(const StateArraySpec& spec) {
  ArrayRow row{.name = std::string(array_name(spec.array)),
               .dtype = std::string(dtype_name(spec.dtype)),
               .block = spec.block_elements};
  if (spec.block_elements != 0) {
    row.scale_dtype = dtype_name(spec.scale_dtype);
  }
  return row;
}

// Calls visit(column, field) for each column: for writing and for reading.
template <typename Visit>
void for_each_array_column(Visit visit) {
  visit("name", &ArrayRow::name);
  visit("dtype", &ArrayRow::dtype);
  visit("code", &ArrayRow::code);
  visit("block", &ArrayRow::block);
  visit("scale_dtype", &ArrayRow::scale_dtype);
  visit("scale_block", &ArrayRow::scale_block);
  visit("scale2_dtype", &ArrayRow::scale2_dtype);
}

void write_arrays(Hdf5Document& file, const StateLayout& arrays) {
  std::vector<Hdf5Column> columns;
  for_each_array_column([&](const char* column, auto field) {
    std::vector<std::decay_t<decltype(std::declval<ArrayRow>().*field)>> cells;
    for (const StateArraySpec& spec : arrays.arrays()) {
      cells.push_back(row_of(spec).*field);
    }
    columns.push_back({column, std::move(cells)});
  });
  file.write_table("/arrays", columns);
}

// Refuses every array, type and scale that this program would not have written for the optimizer.
void check_arrays(const Hdf5Document& file, const ManifestInfo& info, const std::string& name) {
  const std::span<const StateArraySpec> expected = info.arrays().arrays();
  for_each_array_column([&](const char* column, auto field) {
    using Cell = std::decay_t<decltype(std::declval<ArrayRow>().*field)>;
    std::vector<Cell> cells;
    if constexpr (std::is_same_v<Cell, Index>) {
      cells = file.int_column("/arrays", column);
    } else {
      cells = file.text_column("/arrays", column);
    }
    if (cells.size() != expected.size()) {
      refuse(name,
             fmt::format("/arrays has {} rows; for optimizer {} this program reads {}",
                         cells.size(), optimizer_text(info.optimizer), expected.size()),
             TESSERA_HERE);
    }
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const ArrayRow known = row_of(expected[i]);
      if (cells[i] != known.*field) {
        refuse(name,
               fmt::format("{} of row {} of /arrays ({}) is '{}'; for optimizer {} this program "
                           "reads '{}'",
                           column, i, known.name, cells[i], optimizer_text(info.optimizer),
                           known.*field),
               TESSERA_HERE);
      }
    }
  });
}

void write_formats(Hdf5Document& file, const ManifestInfo& info) {
  file.put_attribute("optimizer", optimizer_text(info.optimizer));
  file.put_attribute("moments", moments_text(info));
  file.put_attribute("rounding_seed", rounding_seed_text(info));
  for (const char* field : kReserved) {
    file.put_attribute(field, std::string(kNone));
  }
  file.put_attribute(kBaseHash,
                     info.adapter_json.empty() ? std::string(kNone) : info.base_model_hash);
  if (!info.adapter_json.empty()) {
    file.put_attribute(kAdapters, info.adapter_json);
  }
  write_arrays(file, info.arrays());
}

void read_formats(const Hdf5Document& file, ManifestInfo& info, const std::string& name) {
  const std::string optimizer = file.text_attribute("optimizer");
  info.optimizer = find_optimizer(optimizer);
  if (!info.optimizer && optimizer != kNone) {
    refuse(name,
           fmt::format("optimizer is '{}'; this program reads {} and none", optimizer,
                       optimizer_names()),
           TESSERA_HERE);
  }
  const auto require_text = [&](const char* field, std::string_view known) {
    if (const std::string text = file.text_attribute(field); text != known) {
      refuse(name, fmt::format("{} is '{}'; this program reads '{}'", field, text, known),
             TESSERA_HERE);
    }
  };
  if (info.optimizer == OptimizerKind::adamw) {
    const std::string moments = file.text_attribute("moments");
    const std::optional<MomentType> known = find_moments(moments);
    if (!known) {
      refuse(name,
             fmt::format("moments is '{}'; this program reads 'f32', 'bf16' and '8bit'", moments),
             TESSERA_HERE);
    }
    info.moments = *known;
  } else {
    require_text("moments", moments_text(info));
  }
  require_text("rounding_seed", rounding_seed_text(info));
  for (const char* field : kReserved) {
    require_text(field, kNone);
  }
  info.adapter_json = file.find_text_attribute(kAdapters).value_or("");
  if (info.adapter_json.empty()) {
    require_text(kBaseHash, kNone);
  } else {
    info.base_model_hash = file.text_attribute(kBaseHash);
  }
  check_arrays(file, info, name);
}

// Of version 1.
void read_moments(const Hdf5Document& file, ManifestInfo& info, const std::string& name) {
  const std::string moments = file.text_attribute("moments");
  if (moments != kNone && moments != "adamw") {
    refuse(name, fmt::format("moments '{}' are not known", moments), TESSERA_HERE);
  }
  if (moments == kNone) {
    info.optimizer.reset();
  }
}

// Each attribute once, for writing and for reading: the two cannot drift apart.
template <typename Info, typename Visit>
void for_each_attribute(Info& info, Visit visit) {
  visit("save_id", info.save_id);
  visit("run_id", info.run_id);
  visit("parent_save_id", info.parent_save_id);
  visit("step", info.step);
  visit("updates", info.updates);
  visit("skipped", info.skipped);
  visit("world_size", info.world_size);
  visit("micro_batch", info.micro_batch);
  visit("sum_group", info.reduce_group);
  visit("flce_chunk_rows", info.flce_chunk_rows);
  visit("attention_slice", info.attention_slice);
  visit("gemm_table_hash", info.gemm_table_hash);
  visit("config_json", info.config_json);
  visit("config_hash", info.config_hash);
  visit("data_hash", info.data_hash);
  visit("options_json", info.options_json);
  visit("windows_taken", info.windows_taken);
  visit("epoch", info.epoch);
  visit("seed", info.seed);
  visit("nonfinite_params", info.nonfinite_params);
}

void write_param_table(Hdf5Document& file, const ParamTable& table) {
  std::vector<std::string> names;
  std::vector<std::string> dtypes;
  std::vector<Index> ranks;
  std::vector<Hdf5Column::Extents> shapes;
  std::vector<std::string> units;
  std::vector<Index> offsets;
  std::vector<Index> counts;
  std::vector<std::string> aliases;
  for (const ParamRow& row : table.params) {
    names.push_back(row.name);
    dtypes.emplace_back(dtype_name(DType::f32));
    ranks.push_back(row.shape.rank());
    Hdf5Column::Extents extents{};
    for (int axis = 0; axis < row.shape.rank(); ++axis) {
      extents[static_cast<std::size_t>(axis)] = row.shape[axis];
    }
    shapes.push_back(extents);
    units.push_back(row.unit);
    offsets.push_back(row.offset);
    counts.push_back(row.count());
    aliases.push_back(row.alias_of);
  }
  file.write_table("/table", std::array<Hdf5Column, 8>{{{"name", names},
                                                        {"dtype", dtypes},
                                                        {"ndim", ranks},
                                                        {"shape", shapes},
                                                        {"unit", units},
                                                        {"offset", offsets},
                                                        {"count", counts},
                                                        {"alias_of", aliases}}});
}

std::string nonfinite_column(const StateArraySpec& spec) {
  return fmt::format("nonfinite_{}", array_name(spec.array));
}

void write_shard_tables(Hdf5Document& file, const Manifest& manifest) {
  const std::span<const StateArraySpec> arrays = manifest.info.arrays().arrays();
  std::vector<std::string> files;
  std::vector<Index> ranks;
  std::vector<Index> elements;
  std::vector<std::uint64_t> bytes;
  std::vector<std::uint64_t> hashes;
  std::vector<std::vector<Index>> nonfinite(arrays.size());
  std::vector<Index> slice_ranks;
  std::vector<std::string> units;
  std::vector<Index> begins;
  std::vector<Index> ends;
  std::vector<Index> offsets;
  for (const ShardRecord& shard : manifest.shards) {
    files.push_back(shard.file);
    ranks.push_back(shard.spec.rank);
    elements.push_back(shard.spec.count());
    bytes.push_back(shard.file_bytes);
    hashes.push_back(shard.blocks_hash);
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      nonfinite[i].push_back(shard.nonfinite.at(i));
    }
    for (const UnitSlice& slice : shard.spec.slices) {
      slice_ranks.push_back(shard.spec.rank);
      units.push_back(slice.unit);
      begins.push_back(slice.begin);
      ends.push_back(slice.end);
      offsets.push_back(slice.offset);
    }
  }
  std::vector<Hdf5Column> columns = {{"file", files},
                                     {"rank", ranks},
                                     {"elements", elements},
                                     {"bytes", bytes},
                                     {"blocks_xxh3", hashes}};
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    columns.push_back({nonfinite_column(arrays[i]), std::move(nonfinite[i])});
  }
  file.write_table("/shards", columns);
  file.write_table("/slices", std::array<Hdf5Column, 5>{{{"rank", slice_ranks},
                                                         {"unit", units},
                                                         {"begin", begins},
                                                         {"end", ends},
                                                         {"offset", offsets}}});
}

/// The pieces of a parameter in all shards, as boxes of its shape.
std::vector<Hdf5Mapping> mappings_of(const ParamRow& row, StateArray array,
                                     const std::vector<ShardRecord>& shards) {
  std::vector<Hdf5Mapping> mappings;
  for (const ShardRecord& shard : shards) {
    for (const UnitSlice& slice : shard.spec.slices) {
      const Index begin = std::max(slice.begin, row.offset);
      const Index end = std::min(slice.end, row.offset + row.count());
      if (slice.unit != row.unit || begin >= end) {
        continue;
      }
      const Index source = slice.offset + begin - slice.begin;
      const Index first = begin - row.offset;  // of the piece, in the flattened parameter
      for (Box& box : cut_into_boxes(row.shape, first, end - row.offset)) {
        mappings.push_back({std::move(box.start), std::move(box.count), shard.file,
                            fmt::format("/zero/{}", array_name(array)), shard.spec.count(),
                            source + box.begin - first});
      }
    }
  }
  return mappings;
}

void write_virtual_datasets(Hdf5Document& file, const Manifest& manifest) {
  const StateLayout& arrays = manifest.info.arrays();
  if (arrays.size() > 1) {
    file.create_group("/optim");
  }
  for (const StateArraySpec& spec : arrays.arrays()) {
    const std::string group = array_group(spec.array);
    file.create_group(group);
    for (const ParamRow& row : manifest.table.params) {
      const std::string path = fmt::format("{}/{}", group, row.name);
      if (!row.alias_of.empty()) {
        file.link(fmt::format("{}/{}", group, row.alias_of), path);
        continue;
      }
      std::vector<Index> extents;
      extents.reserve(static_cast<std::size_t>(row.shape.rank()));
      for (int axis = 0; axis < row.shape.rank(); ++axis) {
        extents.push_back(row.shape[axis]);
      }
      file.create_virtual(path, extents, mappings_of(row, spec.array, manifest.shards));
    }
  }
}

Shape shape_of(const Hdf5Column::Extents& extents, Index rank, const std::string& name) {
  constexpr Index kMostElements = Index{1} << 45U;  // of one parameter; keeps sums of them in range
  bool is_sane = rank >= 1 && rank <= static_cast<Index>(extents.size());
  Index room = kMostElements;
  for (std::size_t axis = 0; is_sane && axis < static_cast<std::size_t>(rank); ++axis) {
    is_sane = extents[axis] >= 0 && extents[axis] <= room;
    room /= std::max<Index>(extents[axis], 1);
  }
  if (!is_sane) {
    refuse(name,
           fmt::format("ndim {} or shape ({}) of /table is out of range: 1 to {} extents, together "
                       "at most {} elements, unused ones 0",
                       rank, fmt::join(extents, ", "), extents.size(), kMostElements),
           TESSERA_HERE);
  }
  for (auto axis = static_cast<std::size_t>(rank); axis < extents.size(); ++axis) {
    require_range(name, "an unused extent of shape in /table", extents[axis], 0, 0);
  }
  switch (rank) {
    case 1:
      return {extents[0]};
    case 2:
      return {extents[0], extents[1]};
    case 3:
      return {extents[0], extents[1], extents[2]};
    default:
      return {extents[0], extents[1], extents[2], extents[3]};
  }
}

// Each name once, and aliases of a parameter that is there.
void require_distinct(const ParamTable& table, const std::string& name) {
  std::set<std::string_view> params;
  for (const ParamRow& row : table.params) {
    if (row.name.empty() || row.unit.empty() || !params.insert(row.name).second) {
      refuse(name,
             fmt::format("name or unit of '{}' in /table is empty, or stands twice", row.name),
             TESSERA_HERE);
    }
  }
  std::set<std::string_view> units;
  for (const UnitRow& unit : table.units) {
    if (!units.insert(unit.name).second) {
      refuse(name, fmt::format("unit '{}' of /table is not in one piece", unit.name), TESSERA_HERE);
    }
  }
  for (const ParamRow& row : table.params) {
    if (row.alias_of.empty()) {
      continue;
    }
    const auto other =
        std::find_if(table.params.begin(), table.params.end(), [&](const ParamRow& candidate) {
          return candidate.name == row.alias_of && candidate.alias_of.empty();
        });
    if (other == table.params.end() || other->unit != row.unit || other->offset != row.offset ||
        other->shape != row.shape) {
      refuse(name,
             fmt::format("alias_of of {} in /table is '{}', which is not a parameter of its unit, "
                         "offset and shape",
                         row.name, row.alias_of),
             TESSERA_HERE);
    }
  }
}

ParamTable read_param_table(const Hdf5Document& file, const std::string& name) {
  constexpr Index kMostElements = Index{1} << 50U;  // of all parameters
  const std::string path = "/table";
  const auto names = file.text_column(path, "name");
  const auto dtypes = file.text_column(path, "dtype");
  const auto ranks = file.int_column(path, "ndim");
  const auto shapes = file.extents_column(path, "shape");
  const auto units = file.text_column(path, "unit");
  const auto offsets = file.int_column(path, "offset");
  const auto counts = file.int_column(path, "count");
  const auto aliases = file.text_column(path, "alias_of");
  ParamTable table;
  Index total = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto refuse_row = [&](const std::string& what, SourceLocation where) {
      refuse(name, fmt::format("{} in row {} of /table ({})", what, i, names[i]), where);
    };
    if (dtypes[i] != dtype_name(DType::f32)) {
      refuse_row(fmt::format("dtype is '{}'; it must be '{}'", dtypes[i], dtype_name(DType::f32)),
                 TESSERA_HERE);
    }
    ParamRow row{names[i], units[i], offsets[i], shape_of(shapes[i], ranks[i], name), aliases[i]};
    if (row.count() != counts[i]) {
      refuse_row(fmt::format("count is {}; by its shape it must be {}", counts[i], row.count()),
                 TESSERA_HERE);
    }
    if (row.alias_of.empty()) {
      // Parameters follow one another, unit by unit.
      if (table.units.empty() || table.units.back().name != row.unit) {
        table.units.push_back({row.unit, 0});
      }
      if (row.offset != table.units.back().count) {
        refuse_row(fmt::format("offset is {}; after the row before it must be {}", row.offset,
                               table.units.back().count),
                   TESSERA_HERE);
      }
      table.units.back().count += row.count();
      total += row.count();
      if (total > kMostElements) {
        refuse_row(
            fmt::format("count is {}: more than {} elements in all", row.count(), kMostElements),
            TESSERA_HERE);
      }
    }
    table.params.push_back(std::move(row));
  }
  return table;
}

std::vector<ShardRecord> read_shard_tables(const Hdf5Document& file, const ManifestInfo& info,
                                           const std::string& name) {
  const Index world_size = info.world_size;
  const auto files = file.text_column("/shards", "file");
  const auto ranks = file.int_column("/shards", "rank");
  const auto bytes = file.uint_column("/shards", "bytes");
  const auto hashes = file.uint_column("/shards", "blocks_xxh3");
  std::vector<std::vector<Index>> nonfinite;
  for (const StateArraySpec& spec : info.file_arrays().arrays()) {
    nonfinite.push_back(file.int_column("/shards", nonfinite_column(spec)));
  }
  if (static_cast<Index>(files.size()) != world_size) {
    refuse(name, fmt::format("world_size is {}; /shards lists {} files", world_size, files.size()),
           TESSERA_HERE);
  }
  std::vector<ShardRecord> shards;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto rank = static_cast<Index>(i);
    require_range(name, fmt::format("rank of row {} of /shards", i), ranks[i], rank, rank);
    if (files[i] != shard_file_name(rank, world_size)) {
      refuse(name,
             fmt::format("file of row {} of /shards is '{}'; it must be '{}'", i, files[i],
                         shard_file_name(rank, world_size)),
             TESSERA_HERE);
    }
    ShardRecord record{files[i], {rank, world_size, {}}, bytes[i], hashes[i], {}};
    for (const std::vector<Index>& of_array : nonfinite) {
      record.nonfinite.push_back(of_array[i]);
    }
    shards.push_back(std::move(record));
  }
  const auto slice_ranks = file.int_column("/slices", "rank");
  const auto units = file.text_column("/slices", "unit");
  const auto begins = file.int_column("/slices", "begin");
  const auto ends = file.int_column("/slices", "end");
  const auto offsets = file.int_column("/slices", "offset");
  for (std::size_t i = 0; i < slice_ranks.size(); ++i) {
    require_range(name, fmt::format("rank of row {} of /slices", i), slice_ranks[i], 0,
                  world_size - 1);
    shards[static_cast<std::size_t>(slice_ranks[i])].spec.slices.push_back(
        {units[i], begins[i], ends[i], offsets[i]});
  }
  return shards;
}

// What /shards says beside the slices, which have been checked.
void check_shards(const Hdf5Document& file, const Manifest& manifest, const std::string& name) {
  const auto elements = file.int_column("/shards", "elements");
  const std::span<const StateArraySpec> arrays = manifest.info.file_arrays().arrays();
  Index nonfinite_params = 0;
  for (std::size_t i = 0; i < manifest.shards.size(); ++i) {
    const ShardRecord& shard = manifest.shards[i];
    const Index count = shard.spec.count();
    require_range(name, fmt::format("elements of {} in /shards", shard.file), elements[i], count,
                  count);
    for (std::size_t number = 0; number < arrays.size(); ++number) {
      const Index most = manifest.info.arrays().has(arrays[number].array) ? count : 0;
      require_range(
          name, fmt::format("{} of {} in /shards", nonfinite_column(arrays[number]), shard.file),
          shard.nonfinite[number], 0, most);
    }
    nonfinite_params += shard.nonfinite[manifest.info.arrays().number_of(StateArray::master)];
  }
  require_range(name, "nonfinite_params", manifest.info.nonfinite_params, nonfinite_params,
                nonfinite_params);
}

}  // namespace

std::vector<std::byte> manifest_image(const Manifest& manifest) {
  Hdf5Document file = Hdf5Document::create_in_memory(std::string(kManifestName));
  file.put_attribute("format", std::string(kCheckpointFormat));
  file.put_attribute("version", kCheckpointVersion);
  for_each_attribute(manifest.info,
                     [&](const char* name, const auto& value) { file.put_attribute(name, value); });
  if (!manifest.info.evaluations_json.empty()) {
    file.put_attribute(kEvaluations, manifest.info.evaluations_json);
  }
  if (!manifest.info.start_json.empty()) {
    file.put_attribute(kStart, manifest.info.start_json);
  }
  write_formats(file, manifest.info);
  write_param_table(file, manifest.table);
  write_shard_tables(file, manifest);
  write_virtual_datasets(file, manifest);
  return file.image();
}

Manifest parse_manifest(std::span<const std::byte> image, const std::string& name) {
  const Hdf5Document file = Hdf5Document::open_image(image, name);
  if (const std::string format = file.text_attribute("format"); format != kCheckpointFormat) {
    refuse(name, fmt::format("format '{}' is not a {}", format, kCheckpointFormat), TESSERA_HERE);
  }
  Manifest manifest;
  manifest.info.version = file.int_attribute("version");
  require_known_version(name, manifest.info.version);
  for_each_attribute(manifest.info, [&](const char* attribute, auto& value) {
    using Value = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, std::string>) {
      value = file.text_attribute(attribute);
    } else if constexpr (std::is_same_v<Value, Index>) {
      value = file.int_attribute(attribute);
    } else {
      value = file.uint_attribute(attribute);
    }
  });
  manifest.info.evaluations_json = file.find_text_attribute(kEvaluations).value_or("");
  manifest.info.start_json = file.find_text_attribute(kStart).value_or("");
  const bool is_oldest = manifest.info.version == kOldestVersion;
  (is_oldest ? read_moments : read_formats)(file, manifest.info, name);
  manifest.table = read_param_table(file, name);
  check_info(manifest.info, manifest.table.total_count(), name);
  if (is_oldest) {  // which stored the same number twice
    require_range(name, "rng_counter", file.int_attribute("rng_counter"),
                  manifest.info.windows_taken, manifest.info.windows_taken);
  }
  check_table(manifest.table, manifest.info, name);
  require_distinct(manifest.table, name);
  manifest.shards = read_shard_tables(file, manifest.info, name);
  check_slices(manifest.shards, manifest.table, name);
  check_shards(file, manifest, name);
  for (ShardRecord& shard : manifest.shards) {
    shard.nonfinite.resize(manifest.info.arrays().size());  // in version 1 others are there, and 0
  }
  return manifest;
}

}  // namespace tessera
