#include "jobs/inspect/tensors.h"

#include <algorithm>
#include <cmath>
#include <iostream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "jobs/inspect/values.h"
#include "kernels/base/error.h"
#include "runtime/checkpoint/tensor_statistics.h"

namespace tessera::inspect {
namespace {

constexpr std::size_t kHistogramBins = 20;
constexpr Index kFirstValues = 8;

std::vector<std::string> statistics_cells(const TensorStatistics& s) {
  return {number(s.min), number(s.max), number(s.mean), number(s.norm),
          fmt::format("{}", s.nonfinite)};
}

void print_array(StateArray array, const TensorStatistics& s, const Histogram& histogram,
                 const std::vector<double>& first) {
  std::cout << fmt::format(
      "\n{}: min {:.6g}, max {:.6g}, mean {:.6g}, norm {:.6g}, {} of {} not finite\n",
      array_name(array), s.min, s.max, s.mean, s.norm, s.nonfinite, s.count);
  std::vector<std::string> texts;
  texts.reserve(first.size());
  for (const double value : first) {
    texts.push_back(fmt::format("{:.9g}", value));
  }
  std::cout << fmt::format("  first: {}\n", fmt::join(texts, " "));
  constexpr double kBarWidth = 50;
  const Index most =
      std::max<Index>(1, *std::max_element(histogram.bins.begin(), histogram.bins.end()));
  const double width =
      (histogram.high - histogram.low) / static_cast<double>(histogram.bins.size());
  for (std::size_t bin = 0; bin < histogram.bins.size(); ++bin) {
    const auto bar = static_cast<std::size_t>(std::ceil(
        kBarWidth * static_cast<double>(histogram.bins[bin]) / static_cast<double>(most)));
    std::cout << fmt::format("  {:>12.4g} {:>12} {}\n",
                             histogram.low + width * static_cast<double>(bin), histogram.bins[bin],
                             std::string(bar, '#'));
  }
}

}  // namespace

const ParamRow& find_param(const CheckpointReader& reader, const std::string& name) {
  const std::vector<ParamRow>& params = reader.table().params;
  const auto found = std::find_if(params.begin(), params.end(),
                                  [&](const ParamRow& row) { return row.name == name; });
  if (found == params.end()) {
    throw ConfigError(fmt::format("--param {}: there is no such parameter; without --param, "
                                  "inspect lists them",
                                  name),
                      TESSERA_HERE);
  }
  return *found;
}

void show_param(CheckpointReader& reader, const std::string& name, Output& out) {
  const ParamRow& param = find_param(reader, name);
  Json& json = out.document["param"];
  json["name"] = param.name;
  json["ranks"] = owners_of(reader, param);
  if (out.is_text()) {
    std::cout << fmt::format("{} {} of unit {}, ranks {}{}\n", param.name, shape_text(param.shape),
                             param.unit, ranks_text(owners_of(reader, param)),
                             param.alias_of.empty() ? "" : ", is " + param.alias_of);
  }
  for (const StateArraySpec& spec : reader.arrays().arrays()) {
    const StateArray array = spec.array;
    StatisticsSum sum;
    std::vector<double> first;
    scan_param(reader, array, param, [&](std::span<const float> values) {
      sum.add(values);
      for (const float value : values) {
        if (static_cast<Index>(first.size()) >= kFirstValues) {
          break;
        }
        first.push_back(static_cast<double>(value));
      }
    });
    const TensorStatistics statistics = sum.result();
    Histogram histogram{statistics.min, statistics.max, std::vector<Index>(kHistogramBins)};
    scan_param(reader, array, param, [&](std::span<const float> values) { histogram.add(values); });
    Json& entry = json[std::string(array_name(array))];
    entry["statistics"] = json_of(statistics);
    entry["histogram"] = {
        {"low", histogram.low}, {"high", histogram.high}, {"bins", histogram.bins}};
    entry["first"] = first;
    if (out.is_text()) {
      print_array(array, statistics, histogram, first);
    }
  }
}

void show_statistics(CheckpointReader& reader, Output& out) {
  const auto statistics = with_progress("statistics", [&](const ByteProgress& progress) {
    return tensor_statistics(reader, progress);
  });
  Json& json = out.document["stats"] = Json::array();
  TextTable table({"parameter", "array", "min", "max", "mean", "norm", "not finite"});
  for (std::size_t i = 0; i < reader.table().params.size(); ++i) {
    const ParamRow& param = reader.table().params[i];
    Json entry = {{"name", param.name}};
    for (std::size_t number = 0; number < statistics.size(); ++number) {
      const TensorStatistics& own = statistics[number][i];
      const std::string array(array_name(reader.arrays().arrays()[number].array));
      entry[array] = json_of(own);
      std::vector<std::string> row = {param.name, array};
      for (std::string& cell : statistics_cells(own)) {
        row.push_back(std::move(cell));
      }
      table.add(std::move(row));
    }
    json.push_back(std::move(entry));
  }
  if (out.is_text()) {
    table.print();
  }
}

void show_hashes(CheckpointReader& reader, Output& out) {
  const CheckpointHashes hashes = with_progress(
      "hash", [&](const ByteProgress& progress) { return hash_tensors(reader, progress); });
  std::vector<std::string> titles = {"parameter"};
  for (const StateArraySpec& spec : reader.arrays().arrays()) {
    titles.emplace_back(array_name(spec.array));
  }
  TextTable table(titles);
  Json& json = out.document["hash"];
  json["tensors"] = Json::array();
  for (std::size_t i = 0; i < reader.table().params.size(); ++i) {
    const ParamRow& param = reader.table().params[i];
    Json entry = {{"name", param.name}};
    std::vector<std::string> row = {param.name};
    for (std::size_t number = 0; number < hashes.tensors.size(); ++number) {
      const std::string text = hashes.tensors[number][i].text();
      entry[titles[number + 1]] = text;
      row.push_back(text);
    }
    json["tensors"].push_back(std::move(entry));
    table.add(std::move(row));
  }
  json["overall"] = hashes.overall.text();
  if (out.is_text()) {
    table.print();
    std::cout << hashes.overall.text() << '\n';
  }
}

}  // namespace tessera::inspect
