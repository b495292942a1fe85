// The numbers of a run as tables for a spreadsheet: comma-separated values, RFC 4180.
#pragma once

#include <filesystem>
#include <vector>

namespace tessera::report {

struct RunRecord;

/// Writes FOLDER/steps.csv and FOLDER/evaluations.csv: a line of names, then a line a step or evaluation
/// (none without evaluations); numbers are those of metrics.jsonl, digit for digit as JSON has them, and
/// what it lacks is empty. Only tables of report are replaced. Returns the paths. Throws ConfigError and
/// WriteError.
std::vector<std::filesystem::path> write_csv_files(const RunRecord& run,
                                                   const std::filesystem::path& folder);

}  // namespace tessera::report
