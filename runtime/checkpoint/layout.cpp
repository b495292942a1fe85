#include "runtime/checkpoint/layout.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>

#include <boost/uuid/random_generator.hpp>
#include <boost/uuid/uuid_io.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "model/json_text.h"
#include "model/param_layout.h"
#include "optim/optimizer_shard.h"

namespace tessera {
namespace {

constexpr int kStepDigits = 8;
constexpr std::string_view kStepPrefix = "step-";
constexpr std::size_t kNamedParams = 6;  // in a message; of more only the number is given

/// Appends the boxes of elements [begin, end) of the tensor whose axes from `axis` on are meant,
/// under the fixed leading coordinates `prefix`. `base` is the run's first element in the whole
/// tensor.
void append_boxes(const std::vector<Index>& extents, std::vector<Index>& prefix, Index begin,
                  Index end, Index base, std::vector<Box>& boxes) {
  if (begin >= end) {
    return;
  }
  const std::size_t axis = prefix.size();
  Index row = 1;  // elements of one step along `axis`
  for (std::size_t i = axis + 1; i < extents.size(); ++i) {
    row *= extents[i];
  }
  const auto descend = [&](Index coordinate, Index from, Index to, Index at) {
    prefix.push_back(coordinate);
    append_boxes(extents, prefix, from, to, at, boxes);
    prefix.pop_back();
  };
  const Index first_row = begin / row;
  const Index last_row = (end - 1) / row;
  if (first_row == last_row && end - begin < row) {
    descend(first_row, begin - first_row * row, end - first_row * row, base);
    return;
  }
  const Index full_begin = (begin + row - 1) / row;  // first and one past the last whole row
  const Index full_end = end / row;
  if (begin < full_begin * row) {
    descend(first_row, begin - first_row * row, row, base);
  }
  if (full_begin < full_end) {
    Box box;
    box.start = prefix;
    box.start.push_back(full_begin);
    box.start.resize(extents.size(), 0);
    box.count.assign(axis, 1);
    box.count.push_back(full_end - full_begin);
    box.count.insert(box.count.end(), extents.begin() + static_cast<std::ptrdiff_t>(axis) + 1,
                     extents.end());
    box.begin = base + full_begin * row - begin;
    boxes.push_back(std::move(box));
  }
  if (full_end * row < end) {
    descend(full_end, 0, end - full_end * row, base + full_end * row - begin);
  }
}

}  // namespace

std::string array_group(StateArray array) {
  return array == StateArray::master ? std::string("/params")
                                     : fmt::format("/optim/{}", array_name(array));
}

const StateLayout& ManifestInfo::arrays() const {
  static const StateLayout weights = {{StateArray::master}};
  return optimizer ? state_layout(*optimizer) : weights;
}

const StateLayout& ManifestInfo::file_arrays() const {
  return version == kOldestVersion ? state_layout(OptimizerKind::adamw) : arrays();
}

const ParamRow& ParamTable::find(std::string_view param_name) const {
  const auto found = std::find_if(params.begin(), params.end(),
                                  [&](const ParamRow& row) { return row.name == param_name; });
  if (found == params.end()) {
    throw FormatError(fmt::format("there is no parameter {} in this checkpoint", param_name),
                      TESSERA_HERE);
  }
  return *found;
}

const UnitRow& ParamTable::unit(std::string_view unit_name) const {
  const auto found = std::find_if(units.begin(), units.end(),
                                  [&](const UnitRow& row) { return row.name == unit_name; });
  if (found == units.end()) {
    throw FormatError(fmt::format("there is no unit {} in this checkpoint", unit_name),
                      TESSERA_HERE);
  }
  return *found;
}

Index ParamTable::total_count() const noexcept {
  Index total = 0;
  for (const UnitRow& row : units) {
    total += row.count;
  }
  return total;
}

ParamTable param_table(const ParamLayout& layout) {
  ParamTable table;
  for (const ParamUnit& unit : layout.units()) {
    table.units.push_back({unit.name, unit.count});
    for (const ParamTensor& tensor : unit.tensors) {
      table.params.push_back({tensor.name, unit.name, tensor.offset, tensor.shape, {}});
    }
  }
  for (const ParamAlias& alias : layout.aliases()) {
    ParamRow row = table.find(alias.alias_of);
    row.name = alias.name;
    row.alias_of = alias.alias_of;
    table.params.push_back(std::move(row));
  }
  return table;
}

Index ShardSpec::count() const noexcept {
  return slices.empty() ? 0 : slices.back().offset + slices.back().count();
}

ShardSpec shard_spec(std::span<const UnitRow> units, Index rank, Index world_size) {
  TESSERA_REQUIRE(world_size > 0 && rank >= 0 && rank < world_size,
                  fmt::format("rank {} of {}", rank, world_size));
  ShardSpec spec{rank, world_size, {}};
  Index offset = 0;
  const auto ranks = static_cast<int>(world_size);
  for (const UnitRow& unit : units) {
    const OptimizerShard shard =
        OptimizerShard::for_rank(static_cast<int>(rank), ranks, padded_count(unit.count, ranks));
    const Index begin = std::min(shard.param_start, unit.count);
    const Index end = std::min(shard.param_end, unit.count);
    spec.slices.push_back({unit.name, begin, end, offset});
    offset += end - begin;
  }
  return spec;
}

std::string shard_file_name(Index rank, Index world_size) {
  return fmt::format("shard-{:05}-of-{:05}.h5", rank, world_size);
}

std::string step_folder_name(Index step) {
  return fmt::format("{}{:0{}}", kStepPrefix, step, kStepDigits);
}

std::optional<Index> step_of_folder_name(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(kStepPrefix.size());
  Index step = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (code != std::errc() || end != digits.data() + digits.size() || step < 0 ||
      step_folder_name(step) != name) {
    return std::nullopt;
  }
  return step;
}

std::string new_uuid() {
  return boost::uuids::to_string(boost::uuids::random_generator()());
}

std::vector<ByteRange> bytes_outside(std::span<const ByteRange> ranges, std::uint64_t file_bytes) {
  std::vector<ByteRange> sorted;
  std::copy_if(ranges.begin(), ranges.end(), std::back_inserter(sorted),
               [](const ByteRange& range) { return range.bytes > 0; });
  std::sort(sorted.begin(), sorted.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.offset < b.offset; });
  std::vector<ByteRange> outside;
  std::uint64_t position = 0;
  for (const ByteRange& range : sorted) {
    outside.push_back({position, range.offset - position});
    position = range.end();
  }
  outside.push_back({position, file_bytes - position});
  return outside;
}

std::string ShardSummary::to_text() const {
  nlohmann::json json;
  json["rank"] = rank;
  json["file_bytes"] = file_bytes;
  for (const ByteRange& array : arrays) {
    json["arrays"].push_back({array.offset, array.bytes});
  }
  json["header_hash"] = {header_hash.high, header_hash.low};
  json["blocks_hash"] = blocks_hash;
  json["spec_hash"] = spec_hash;
  json["nonfinite"] = nonfinite;
  return json.dump();
}

ShardSummary ShardSummary::from_text(std::string_view text) {
  try {
    const nlohmann::json json = parse_json(text, "a shard's summary");
    ShardSummary summary;
    summary.rank = json.at("rank").get<Index>();
    summary.file_bytes = json.at("file_bytes").get<std::uint64_t>();
    for (const nlohmann::json& range : json.at("arrays")) {
      summary.arrays.push_back(
          {range.at(0).get<std::uint64_t>(), range.at(1).get<std::uint64_t>()});
    }
    const nlohmann::json& hash = json.at("header_hash");
    summary.header_hash = {hash.at(0).get<std::uint64_t>(), hash.at(1).get<std::uint64_t>()};
    summary.blocks_hash = json.at("blocks_hash").get<std::uint64_t>();
    summary.spec_hash = json.at("spec_hash").get<std::uint64_t>();
    summary.nonfinite = json.at("nonfinite").get<std::vector<Index>>();
    return summary;
  } catch (const nlohmann::json::exception& error) {
    throw FormatError(fmt::format("a shard's summary cannot be read: {}", error.what()),
                      TESSERA_HERE);
  }
}

std::uint64_t hash_of(const ShardSpec& spec) {
  std::string text = fmt::format("{} {}\n", spec.rank, spec.world_size);
  for (const UnitSlice& slice : spec.slices) {
    text += fmt::format("{} {} {} {}\n", slice.unit, slice.begin, slice.end, slice.offset);
  }
  return xxh3_64(bytes_of(text));
}

std::vector<Box> cut_into_boxes(const Shape& shape, Index begin, Index end) {
  TESSERA_REQUIRE(0 <= begin && begin <= end && end <= shape.count(),
                  fmt::format("elements {} to {} of {}", begin, end, shape.count()));
  std::vector<Index> extents;
  extents.reserve(static_cast<std::size_t>(shape.rank()));
  for (int axis = 0; axis < shape.rank(); ++axis) {
    extents.push_back(shape[axis]);
  }
  std::vector<Box> boxes;
  std::vector<Index> prefix;
  append_boxes(extents, prefix, begin, end, begin, boxes);
  return boxes;
}

std::string params_in_range(const ParamTable& table, const ShardSpec& spec, Index begin,
                            Index end) {
  std::vector<std::string> names;
  for (const UnitSlice& slice : spec.slices) {
    // the part of [begin, end) that is in this slice, in elements of the unit
    const Index from = std::max(begin, slice.offset) - slice.offset + slice.begin;
    const Index to = std::min(end, slice.offset + slice.count()) - slice.offset + slice.begin;
    if (from >= to) {
      continue;
    }
    for (const ParamRow& row : table.params) {
      if (row.unit == slice.unit && row.offset < to && from < row.offset + row.count()) {
        names.push_back(row.name);
      }
    }
  }
  if (names.size() <= kNamedParams) {
    return fmt::format("{}", fmt::join(names, ", "));
  }
  const std::size_t more = names.size() - kNamedParams;
  names.resize(kNamedParams);
  return fmt::format("{} and {} more", fmt::join(names, ", "), more);
}

std::vector<ParamRun> param_runs(const ParamTable& table, const ShardSpec& spec) {
  std::map<std::string_view, std::vector<std::size_t>> by_unit;
  for (std::size_t i = 0; i < table.params.size(); ++i) {
    if (table.params[i].alias_of.empty()) {
      by_unit[table.params[i].unit].push_back(i);
    }
  }
  std::vector<ParamRun> runs;
  for (const UnitSlice& slice : spec.slices) {
    for (const std::size_t i : by_unit[slice.unit]) {
      const ParamRow& row = table.params[i];
      const Index from = std::max(slice.begin, row.offset);
      const Index to = std::min(slice.end, row.offset + row.count());
      if (from < to) {
        runs.push_back({i, from - row.offset, to - from, slice.offset + from - slice.begin});
      }
    }
  }
  return runs;
}

std::vector<ParamRun> runs_between(std::span<const ParamRun> runs, Index begin, Index end) {
  std::vector<ParamRun> parts;
  auto run = std::partition_point(runs.begin(), runs.end(), [&](const ParamRun& candidate) {
    return candidate.offset + candidate.count <= begin;
  });
  for (; run != runs.end() && run->offset < end; ++run) {
    const Index from = std::max(begin, run->offset);
    const Index to = std::min(end, run->offset + run->count);
    parts.push_back({run->param, run->begin + from - run->offset, to - from, from});
  }
  return parts;
}

}  // namespace tessera
