#include "jobs/report/csv_file.h"

#include <string>
#include <string_view>

#include "jobs/report/metrics_file.h"
#include "jobs/report/output_file.h"

namespace tessera::report {
namespace {

constexpr std::string_view kStepsStart = "step,loss,";
constexpr std::string_view kEvaluationsStart = "step,eval_name,";

// Quoted where it must be.
std::string cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) {
    return text;
  }
  std::string quoted = "\"";
  for (const char c : text) {
    quoted += c == '"' ? "\"\"" : std::string(1, c);
  }
  return quoted + '"';
}

OutputRules rules_of(std::string_view start) {
  return {.option = "--csv",
          .what = "a table of report",
          .is_ours = [start](const std::filesystem::path& path) {
            return first_bytes(path, start.size()) == start;
          }};
}

// `names`: of a second column, for each row; null: there is none.
std::string table(const Columns& columns, const std::vector<std::string>* names) {
  std::string text;
  for (std::size_t i = 0; i < columns.fields.size(); ++i) {
    text += i == 0 ? "" : ",";
    text += columns.fields[i].first;
    text += i == 0 && names != nullptr ? ",eval_name" : "";
  }
  text += '\n';
  for (std::size_t row = 0; row < columns.rows(); ++row) {
    for (std::size_t i = 0; i < columns.fields.size(); ++i) {
      const nlohmann::json& value = columns.fields[i].second[row];
      text += i == 0 ? "" : ",";
      text += value.is_null() ? std::string() : value.dump();
      if (i == 0 && names != nullptr) {
        text.append(",").append(cell((*names)[row]));
      }
    }
    text += '\n';
  }
  return text;
}

}  // namespace

std::vector<std::filesystem::path> write_csv_files(const RunRecord& run,
                                                   const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files = {folder / "steps.csv", folder / "evaluations.csv"};
  write_in_folder(files[0], rules_of(kStepsStart), table(run.steps, nullptr));
  // without evaluations too: an older table would stay beside the new steps
  write_in_folder(files[1], rules_of(kEvaluationsStart),
                  table(run.evaluations, &run.evaluation_name));
  return files;
}

}  // namespace tessera::report
