#include "jobs/report/metrics_file.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/file_status.h"
#include "kernels/base/input_file.h"
#include "model/json_text.h"

namespace tessera::report {
namespace {

using nlohmann::json;

Columns columns_of(std::initializer_list<const char*> names) {
  Columns columns;
  for (const char* name : names) {
    columns.fields.emplace_back(name, std::vector<json>{});
  }
  return columns;
}

void append(Columns& columns, const json& line) {
  for (auto& [name, values] : columns.fields) {
    const auto found = line.find(name);
    const bool usable = found != line.end() && (found->is_number() || found->is_boolean());
    values.push_back(usable ? *found : json());
  }
}

double number_or(const json& line, const char* field, double otherwise) {
  const auto found = line.find(field);
  return found != line.end() && found->is_number() ? found->get<double>() : otherwise;
}

bool is_line_of_a_run(const json& line) {
  return line.is_object() && line.contains("step") && line["step"].is_number_integer();
}

bool is_event(const json& line) {
  return line.contains("event") && line["event"].is_string();
}

// Calls `take` with every line that is a run's; returns how many are not.
template <typename Take>
std::size_t for_each_line(const std::filesystem::path& file, const Take& take) {
  std::ifstream in(file, std::ios::binary);
  std::string text;
  std::size_t unread = 0;
  while (std::getline(in, text)) {
    const json line = parse_json_line(text);
    if (is_line_of_a_run(line)) {
      take(line);
    } else if (!text.empty()) {
      ++unread;
    }
  }
  return unread;
}

double file_time(const std::filesystem::path& file) {
  using std::chrono::file_clock;
  using std::chrono::system_clock;
  std::error_code error;
  const auto time = std::filesystem::last_write_time(file, error);
  const auto since = file_clock::to_sys(error ? file_clock::now() : time).time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

// The lines of one metrics.jsonl, in their order.
class Reader {
 public:
  Reader(RunRecord& run, std::int64_t every) : run_(run), every_(every) {}

  void take(const json& line) {
    if (is_event(line)) {
      clock_ = std::max(clock_, number_or(line, "time", 0));
      take_event(line);
    } else if (line.contains("eval_loss")) {
      append(run_.evaluations, line);
      run_.evaluation_time.push_back(clock_);
      const json name = line.value("eval_name", json(""));
      run_.evaluation_name.push_back(name.is_string() ? name.get<std::string>() : std::string());
    } else if (line.contains("loss")) {
      clock_ += number_or(line, "seconds", 0);
      const bool skipped = line.value("skipped", json()) == true;
      if (skipped || line["step"].get<std::int64_t>() % every_ == 0) {
        append_step(line, clock_);
      } else {
        left_out_ = {line, clock_};
      }
    }
  }

  void finish() {
    if (left_out_) {
      const auto [line, time] = *std::exchange(left_out_, std::nullopt);
      append_step(line, time);
    }
  }

 private:
  void append_step(const json& line, double time) {
    left_out_.reset();
    append(run_.steps, line);
    run_.step_time.push_back(time);
  }

  void take_event(const json& line) {
    const auto& event = line["event"].get_ref<const std::string&>();
    if (event == "configuration") {
      run_.configurations.push_back(line);
    } else if (event == "communication") {
      run_.communication.push_back(line);
    } else if (event == "memory") {
      run_.memory = json::array();
      run_.resident = line.value("resident_parameters", json());
      for (const json& part : line.value("lines", json::array())) {
        if (part.is_object() && part.contains("name") && part["name"].is_string()) {
          run_.memory.push_back({{"name", part["name"]},
                                 {"where", part.value("where", json(""))},
                                 {"planned", number_or(part, "planned", 0)},
                                 {"allocated", number_or(part, "allocated", 0)}});
        }
      }
    } else {
      run_.events.push_back(line);
    }
  }

  RunRecord& run_;
  std::int64_t every_;
  double clock_ = 0;
  std::optional<std::pair<json, double>> left_out_;  // the last step, where `every` passes it over
};

// Runs from before events had a time end when their file was last written.
void place_in_time(RunRecord& run, const std::filesystem::path& file) {
  constexpr double kLongAgo = 1e9;  // 2001
  const double last = std::max(run.step_time.empty() ? 0 : run.step_time.back(),
                               run.evaluation_time.empty() ? 0 : run.evaluation_time.back());
  if (last > kLongAgo) {
    return;
  }
  const double shift = file_time(file) - last;
  for (std::vector<double>* times : {&run.step_time, &run.evaluation_time}) {
    for (double& time : *times) {
      time += shift;
    }
  }
}

// The last `parts` components of a path.
std::string tail(const std::filesystem::path& path, int parts) {
  std::filesystem::path kept;
  for (std::filesystem::path rest = path; parts > 0 && rest.has_filename(); --parts) {
    kept = kept.empty() ? rest.filename() : rest.filename() / kept;
    rest = rest.parent_path();
  }
  return kept.empty() ? path.string() : kept.string();
}

}  // namespace

const std::vector<json>& Columns::of(std::string_view field) const {
  const auto found = std::find_if(fields.begin(), fields.end(),
                                  [&](const auto& column) { return column.first == field; });
  TESSERA_REQUIRE(found != fields.end(), std::string(field));
  return found->second;
}

std::filesystem::path metrics_file(const std::filesystem::path& given) {
  return is_folder(given) ? given / "metrics.jsonl" : given;
}

RunRecord read_run(const std::filesystem::path& given, std::int64_t every) {
  const std::filesystem::path file = metrics_file(given);
  if (path_exists(file)) {
    require_regular_file(file);
  }
  if (!std::ifstream(file)) {
    throw ConfigError(fmt::format("cannot read {}: give the --out folder of a run", file.string()),
                      TESSERA_HERE);
  }
  RunRecord run;
  run.folder = absolute_path(file).parent_path();
  run.steps =
      columns_of({"step", "loss", "grad_norm", "lr", "tokens", "padding", "targets",
                  "tokens_per_second", "seconds", "skipped", "pages", "resident_pages",
                  "state_device_bytes", "paged_in_bytes", "paged_out_bytes", "sweep_seconds",
                  "sweep_bytes_per_second", "exposed_update_seconds", "exposed_exchange_seconds"});
  run.evaluations = columns_of({"step", "eval_loss", "eval_accuracy", "eval_targets",
                                "eval_sequences", "eval_file_sequences", "bits_per_byte"});
  Reader reader(run, every);
  std::size_t lines = 0;
  run.unread_lines = for_each_line(file, [&](const json& line) {
    ++lines;
    reader.take(line);
  });
  reader.finish();
  if (lines == 0) {
    throw FormatError(fmt::format("{} holds no line of a training run", file.string()),
                      TESSERA_HERE);
  }
  place_in_time(run, file);
  run.unread_lines += for_each_line(run.folder / "warnings.jsonl", [&run](const json& line) {
    if (is_event(line)) {
      run.warnings.push_back(line);
    }
  });
  return run;
}

void name_apart(std::vector<RunRecord>& runs) {
  constexpr int kDeepest = 64;
  for (int parts = 1; parts <= kDeepest; ++parts) {
    std::set<std::string> names;
    for (RunRecord& run : runs) {
      run.name = tail(run.folder, parts);
      names.insert(run.name);
    }
    if (names.size() == runs.size()) {
      return;
    }
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {  // one folder, given twice
    runs[i].name += fmt::format(" ({})", i + 1);
  }
}

}  // namespace tessera::report
