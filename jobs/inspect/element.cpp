#include "jobs/inspect/element.h"

#include <algorithm>
#include <iostream>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "jobs/inspect/tensors.h"
#include "jobs/inspect/values.h"
#include "jobs/program.h"
#include "kernels/base/error.h"
#include "kernels/base/quantity.h"
#include "optim/optimizer_shard.h"

namespace tessera::inspect {
namespace {

std::vector<Index> parse_indices(const std::string& at, const ParamRow& param) {
  const auto commas = std::count(at.begin(), at.end(), ',');
  if (commas + 1 != param.shape.rank()) {
    throw ConfigError(
        fmt::format("--at {}: {} is {}, so give {}", at, param.name, shape_text(param.shape),
                    param.shape.rank() == 1
                        ? "one index"
                        : fmt::format("{} indices, with commas between them", param.shape.rank())),
        TESSERA_HERE);
  }
  std::vector<Index> indices;
  std::size_t begin = 0;
  for (int axis = 0; axis < param.shape.rank(); ++axis) {
    const std::size_t end = std::min(at.find(',', begin), at.size());
    indices.push_back(parse_count(
        at.substr(begin, end - begin), {0, param.shape[axis] - 1},
        fmt::format("--at {}, of {} {}: index", at, param.name, shape_text(param.shape))));
    begin = end + 1;
  }
  return indices;
}

struct Place {
  Index rank;
  Index offset;  // elements, in each of the shard's arrays
};

// Slices are those of OptimizerShard without the padding, so exactly one owns the element.
Place find_place(const CheckpointReader& reader, const ParamRow& param, Index element) {
  const auto ranks = static_cast<int>(reader.shards().size());
  const Index padded = padded_count(reader.table().unit(param.unit).count, ranks);
  int rank = 0;
  while (!OptimizerShard::for_rank(rank, ranks, padded).owns_param(element)) {
    ++rank;
  }
  const std::vector<UnitSlice>& slices =
      reader.shards()[static_cast<std::size_t>(rank)].spec.slices;
  const auto slice = std::find_if(slices.begin(), slices.end(),
                                  [&](const UnitSlice& own) { return own.unit == param.unit; });
  return {rank, slice->offset + element - slice->begin};
}

}  // namespace

void show_element(CheckpointReader& reader, const std::string& name, const std::string& at,
                  Output& out) {
  const ParamRow& param = find_param(reader, name);
  const std::vector<Index> indices = parse_indices(at, param);
  Index number = 0;  // in the flattened parameter
  for (int axis = 0; axis < param.shape.rank(); ++axis) {
    number = number * param.shape[axis] + indices[static_cast<std::size_t>(axis)];
  }
  const Index element = param.offset + number;
  const Place place = find_place(reader, param, element);
  const std::string& file = reader.shard_file(place.rank);
  Json& json = out.document["element"];
  json = {{"param", param.name},     {"at", indices},      {"unit", param.unit},
          {"unit_element", element}, {"rank", place.rank}, {"file", file}};
  TextTable table({"array", "byte", "value"});
  for (const StateArraySpec& spec : reader.arrays().arrays()) {
    float value = 0;
    reader.read_param(spec.array, param, number, std::span(&value, 1));
    const std::uint64_t byte = reader.array_bytes(place.rank, spec.array).offset +
                               static_cast<std::uint64_t>(place.offset) * sizeof(float);
    json["arrays"][std::string(array_name(spec.array))] = {{"byte", byte}, {"value", value}};
    table.add({std::string(array_name(spec.array)), fmt::format("{}", byte),
               fmt::format("{:.9g}", value)});
  }
  if (out.is_text()) {
    print_lines(fmt::format("{}[{}], element {} of unit {}: owned by rank {} of {}, in {}\n",
                            param.name, fmt::join(indices, ", "), element, param.unit, place.rank,
                            reader.shards().size(), file));
    table.print();
  }
}

}  // namespace tessera::inspect
