#include "jobs/inspect/difference.h"

#include <functional>
#include <iostream>

#include <fmt/format.h>

#include "jobs/inspect/steps.h"
#include "jobs/inspect/values.h"
#include "jobs/program.h"
#include "kernels/base/quantity.h"
#include "model/json_text.h"
#include "runtime/checkpoint/tensor_statistics.h"

namespace tessera::inspect {
namespace {

constexpr int kDiffers = 1;  // exit status of --diff, as that of cmp and diff

/// A parameter of this name and shape; null if there is none.
const ParamRow* counterpart(const CheckpointReader& where, const ParamRow& param) {
  for (const ParamRow& row : where.table().params) {
    if (row.name == param.name && row.shape == param.shape) {
      return &row;
    }
  }
  return nullptr;
}

TensorDifference difference_of(CheckpointReader& reader, CheckpointReader& other, StateArray array,
                               const ParamRow& param, const ParamRow& theirs,
                               const std::function<void(std::uint64_t)>& read) {
  TensorDifference difference;
  std::vector<float> other_values;
  Index position = 0;
  scan_param(reader, array, param, [&](std::span<const float> values) {
    other_values.resize(values.size());
    other.read_param(array, theirs, position, other_values);
    add_difference(values, other_values, difference);
    position += static_cast<Index>(values.size());
    read(values.size_bytes());
  });
  return difference;
}

/// Of `compared` arrays of parameters `differing` do; `is_equal` speaks of all.
void say_verdict(const CheckpointReader& reader, const CheckpointReader& other, bool is_equal,
                 Index differing, Index compared) {
  if (reader.arrays() != other.arrays()) {
    for (const CheckpointReader* each : {&reader, &other}) {
      print_lines(fmt::format("{} holds {}\n", each->folder().string(), arrays_text(each->info())));
    }
  }
  std::cout << (is_equal ? fmt::format("all numbers are equal ({})", counted(compared, "array"))
                         : fmt::format("the numbers differ: {}",
                                       part_text(differing, compared, "array")))
            << '\n';
}

/// Lists the parameters that `mine` alone has, or in another shape. Returns their number.
Index add_unmatched(const CheckpointReader& mine, const CheckpointReader& theirs, TextTable& table,
                    Json& json) {
  Index count = 0;
  for (const ParamRow& param : mine.table().params) {
    if (counterpart(theirs, param) == nullptr) {
      ++count;
      table.add({param.name, shape_text(param.shape), "only in " + mine.folder().string(), "", "",
                 "", ""});
      json["tensors"].push_back({{"name", param.name}, {"only_in", mine.folder().string()}});
    }
  }
  return count;
}

std::vector<std::string> difference_row(const ParamRow& param, StateArray array,
                                        const TensorDifference& d) {
  return {param.name,
          std::string(array_name(array)),
          d.incomparable == 0 ? "differs" : fmt::format("differs, {} not finite", d.incomparable),
          fmt::format("{}", d.differing),
          number(d.max_absolute),
          number(d.max_relative),
          fmt::format("{}", d.max_ulps)};
}

void compare_tensors(CheckpointReader& reader, CheckpointReader& other, Output& out) {
  Json& json = out.document["diff"];
  Index compared = 0;
  Index differing = 0;
  TextTable table({"parameter", "array", "", "differing", "absolute", "relative", "ulps"});
  json["tensors"] = Json::array();
  with_progress("compare", [&](const ByteProgress& progress) {
    std::uint64_t done = 0;
    const auto read = [&](std::uint64_t bytes) {
      done += bytes;
      progress(done, reader.data_bytes());
    };
    for (const StateArraySpec& spec : reader.arrays().arrays()) {
      const StateArray array = spec.array;
      if (!other.arrays().has(array)) {
        continue;
      }
      for (const ParamRow& param : reader.table().params) {
        const ParamRow* theirs = counterpart(other, param);
        if (theirs == nullptr) {
          continue;
        }
        const TensorDifference difference =
            difference_of(reader, other, array, param, *theirs, read);
        ++compared;
        json["tensors"].push_back({{"name", param.name},
                                   {"array", array_name(array)},
                                   {"is_equal", difference.differing == 0},
                                   {"difference", json_of(difference)}});
        if (difference.differing != 0) {
          ++differing;
          table.add(difference_row(param, array, difference));
        }
      }
    }
  });
  const Index unmatched =
      add_unmatched(reader, other, table, json) + add_unmatched(other, reader, table, json);
  const bool is_equal = differing + unmatched == 0 && reader.arrays() == other.arrays();
  json["is_equal"] = is_equal;
  if (!is_equal) {
    out.status = kDiffers;
  }
  if (out.is_text()) {
    say_verdict(reader, other, is_equal, differing, compared);
    if (differing + unmatched > 0) {
      table.print();
    }
  }
}

}  // namespace

void show_difference(CheckpointReader& reader, const std::filesystem::path& diff, ReadRetry& retry,
                     Output& out) {
  CheckpointReader other(other_step(diff, retry), retry);
  Json& json = out.document["diff"];
  json["other"] = other.folder().string();
  json["info"] = Json::object();
  if (out.is_text()) {
    std::cout << "against " << other.folder().string() << '\n';
  }
  const Json mine = json_of(reader.info());
  const Json others = json_of(other.info());
  for (const auto& [key, value] : mine.items()) {
    if (value != others.at(key)) {
      json["info"][key] = {value, others.at(key)};
      if (out.is_text() && !value.is_object()) {
        print_lines(fmt::format("  {}: {} against {}\n", key, shown_json(value),
                                shown_json(others.at(key))));
      }
    }
  }
  compare_tensors(reader, other, out);
}

}  // namespace tessera::inspect
