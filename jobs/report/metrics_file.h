// OUT/metrics.jsonl and OUT/warnings.jsonl of a run, read into columns. What the lines hold is
// written down in runtime/monitor/metrics.md.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace tessera::report {

/// One array a field, all of one length; a field that a line lacks, or whose value is not a number,
/// is null there. Numbers are those of the file, bit for bit.
struct Columns {
  std::vector<std::pair<std::string, std::vector<nlohmann::json>>> fields;

  [[nodiscard]] const std::vector<nlohmann::json>& of(std::string_view field) const;
  [[nodiscard]] std::size_t rows() const { return fields.front().second.size(); }
};

struct RunRecord {
  std::string name;              // for people; unique among the runs of a page after name_apart
  std::filesystem::path folder;  // where metrics.jsonl lies
  Columns steps;        // step, loss, grad_norm, lr, tokens, ... skipped, paged_in_bytes, ...
  Columns evaluations;  // the fields of an evaluation (runtime/monitor/metrics.md)
  std::vector<std::string> evaluation_name;         // of its set; empty where it has none
  std::vector<double> step_time;                    // seconds since 1970 at the end of each step
  std::vector<double> evaluation_time;              // and of each evaluation
  std::vector<nlohmann::json> events;               // lines with "event", but for those below
  std::vector<nlohmann::json> configurations;       // "configuration"
  std::vector<nlohmann::json> communication;        // "communication"
  nlohmann::json memory = nlohmann::json::array();  // the last "memory": its lines
  nlohmann::json resident;                          // and its resident_parameters, or null
  std::vector<nlohmann::json> warnings;             // of warnings.jsonl
  std::size_t unread_lines = 0;                     // no JSON, or no line of a run: passed over
};

/// Of a run: `given` is its --out folder, or its metrics.jsonl.
[[nodiscard]] std::filesystem::path metrics_file(const std::filesystem::path& given);

/// `given`: as metrics_file takes it. `every` keeps the steps that are a
/// multiple of it, the last one, and all that were skipped. Throws ConfigError where there is no
/// such file, FormatError where none of its lines is a run's.
[[nodiscard]] RunRecord read_run(const std::filesystem::path& given, std::int64_t every = 1);

/// Runs whose folders have the same last name get as much of their paths as tells them apart.
void name_apart(std::vector<RunRecord>& runs);

}  // namespace tessera::report
