// report RUN...: the curves of one or several runs as one HTML page, as TensorBoard's event files, or
// as tables; once, or again and again beside a run that is under way.
#include <algorithm>
#include <ctime>
#include <iostream>
#include <optional>
#include <set>

#include <boost/program_options.hpp>
#include <fmt/format.h>

#include "jobs/command_line.h"
#include "jobs/program.h"
#include "jobs/report/csv_file.h"
#include "jobs/report/event_file.h"
#include "jobs/report/metrics_file.h"
#include "jobs/report/output_file.h"
#include "jobs/report/page.h"
#include "jobs/report/timeline.h"
#include "jobs/report/watch.h"
#include "kernels/base/file_status.h"
#include "kernels/base/quantity.h"

namespace tessera::report {
namespace {

namespace po = boost::program_options;

struct Arguments {
  std::vector<std::string> runs;
  std::string out;           // empty: report.html in the first run's folder
  std::string tensorboard;   // empty: none
  std::string csv;           // empty: none
  double watch_seconds = 0;  // 0: once
  double gemm_tflops = 0;
  std::int64_t every = 1;
  std::int64_t trace_step = 0;
};

constexpr std::string_view kUsage = "Usage: report RUN... [options]\n\nWrites one HTML page with "
                                    "the curves of one or several runs. "
                                    "RUN is the --out folder of a\nrun, or its metrics.jsonl.\n\n";

po::options_description described() {
  po::options_description options = option_group("Options");
  options.add_options()(
      "out", po::value<std::string>()->value_name("FILE"),
      "the page; default: report.html in the folder of the first RUN. Only a page of report is "
      "replaced; a pipe (/dev/stdout too) is written to")(
      "tensorboard", po::value<std::string>()->value_name("FOLDER"),
      "write event files for TensorBoard, one folder a run; the page then only if --out is given")(
      "csv", po::value<std::string>()->value_name("FOLDER"),
      "write steps.csv and evaluations.csv for a spreadsheet, one folder a run; the page then only "
      "if --out is given")(
      "watch", po::value<std::string>()->value_name("SECONDS"),
      "write everything again every SECONDS, until all runs have ended or Ctrl-C; the page in the "
      "browser renews itself (no port, no network)")(
      "gemm-tflops", po::value<std::string>()->value_name("TFLOPS"),
      "measured rate of one rank's GEMMs (bench gemm), in 10^12 operations per second: "
      "shows the share that training reaches; default: the rate that each start measured "
      "(metrics.jsonl)")(
      "every", po::value<std::string>()->value_name("N")->default_value("1"),
      "keep the steps that are a multiple of N (and skipped ones): smaller pages of long runs")(
      "trace-step", po::value<std::string>()->value_name("STEP"),
      "step whose timeline is shown; default: the last one in RUN/trace.json");
  return options;
}

// Empty if help or the version was asked for and printed.
std::optional<Arguments> parse(int argc, char** argv) {
  constexpr double kMostTflops = 1e6;
  std::optional<CommandLine> line =
      read_command_line(argc, argv, "report", kUsage, described(), Abbreviations::refused);
  if (!line) {
    return std::nullopt;
  }
  const po::variables_map& values = line->given;
  Arguments arguments;
  if (line->words.empty()) {
    throw ConfigError("no RUN is given: see report --help", TESSERA_HERE);
  }
  arguments.runs = std::move(line->words);
  arguments.out = text_of(values, "out");
  arguments.tensorboard = text_of(values, "tensorboard");
  arguments.csv = text_of(values, "csv");
  if (values.contains("watch")) {
    constexpr double kMostBetween = 86'400;
    arguments.watch_seconds = parse_real(text_of(values, "watch"), {1, kMostBetween}, "--watch");
  }
  if (values.contains("gemm-tflops")) {
    constexpr double kLeast = 1e-6;
    arguments.gemm_tflops =
        parse_real(text_of(values, "gemm-tflops"), {kLeast, kMostTflops}, "--gemm-tflops");
  }
  arguments.every = parse_count(text_of(values, "every"), {1, kMostSteps}, "--every");
  if (values.contains("trace-step")) {
    arguments.trace_step =
        parse_count(text_of(values, "trace-step"), {1, kMostSteps}, "--trace-step");
  }
  return arguments;
}

// A slip in --out must not cost a file that is not a page of ours.
OutputRules page_rules() {
  return {.option = "--out",
          .what = "a page of report",
          .is_ours =
              [](const std::filesystem::path& path) {
                return is_page_start(first_bytes(path, kPageStartBytes));
              },
          .takes_streams = true};
}

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  std::string text(32, '\0');
  if (gmtime_r(&now, &utc) == nullptr) {
    return {};
  }
  text.resize(std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M UTC", &utc));
  return text;
}

nlohmann::json timeline_of(const RunRecord& run, std::int64_t step) {
  const std::filesystem::path file = run.folder / "trace.json";
  if (!path_exists(file)) {
    return nullptr;
  }
  try {
    return read_timeline(file, step);
  } catch (const FormatError& problem) {
    say_note(fmt::format("report: no timeline: {}", problem.message()));
    return nullptr;
  }
}

// `renew_seconds`: until the page asks for its next; 0: it stays as it is. Returns what was written.
std::string write_page(const Arguments& arguments, const std::vector<RunRecord>& records,
                       double renew_seconds) {
  const std::filesystem::path file = arguments.out.empty() ? records.front().folder / "report.html"
                                                           : std::filesystem::path(arguments.out);
  static_cast<void>(find_output_place(file, page_rules()));  // before a long page is made
  std::vector<PageRun> runs;
  runs.reserve(records.size());
  constexpr double kTera = 1e12;
  for (const RunRecord& record : records) {
    runs.push_back({.record = record,
                    .timeline = timeline_of(record, arguments.trace_step),
                    .gemm_flops_per_second = arguments.gemm_tflops * kTera});
  }
  if (arguments.trace_step != 0 && std::all_of(runs.begin(), runs.end(), [](const PageRun& run) {
        return run.timeline.is_null();
      })) {
    throw ConfigError("--trace-step: no RUN has a trace.json (train --trace FIRST:LAST makes one)",
                      TESSERA_HERE);
  }
  const std::string now = now_text();
  const std::string page = html_page(
      runs,
      {.tool = "tessera report " TESSERA_VERSION, .made = now, .renew_seconds = renew_seconds});
  const OutputPlace place = write_in_folder(file, page_rules(), page);
  std::string text = fmt::format("{}: {}, {}\n", file.string(), counted(std::ssize(runs), "run"),
                                 format_bytes(page.size()));
  if (place.kind == OutputPlace::Kind::file) {
    return text;
  }
  std::cerr << for_terminal(
      text, STDERR_FILENO);  // beside a page on standard output there is no room for a sentence
  return {};
}

// One folder below for each run, whatever separators its name has.
std::vector<std::filesystem::path> folders_of(const std::string& parent,
                                              const std::vector<RunRecord>& records) {
  std::vector<std::filesystem::path> folders;
  std::set<std::string> taken;
  for (const RunRecord& record : records) {
    std::string name = record.name;
    std::replace(name.begin(), name.end(), '/', '_');
    std::string unique = name;
    for (int i = 2; !taken.insert(unique).second; ++i) {
      unique = fmt::format("{} ({})", name, i);
    }
    folders.push_back(std::filesystem::path(parent) / unique);
  }
  return folders;
}

std::vector<RunRecord> read_runs(const Arguments& arguments) {
  std::vector<RunRecord> records;
  for (const std::string& run : arguments.runs) {
    records.push_back(read_run(run, arguments.every));
  }
  name_apart(records);
  return records;
}

// Everything that was asked for. Returns what was written, a line a file.
std::string write_all(const Arguments& arguments, const std::vector<RunRecord>& records,
                      double renew_seconds) {
  std::string text;
  const std::vector<std::filesystem::path> event_folders =
      folders_of(arguments.tensorboard, records);
  const std::vector<std::filesystem::path> csv_folders = folders_of(arguments.csv, records);
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (!arguments.tensorboard.empty()) {
      text += write_event_file(records[i], event_folders[i]).string() + "\n";
    }
    if (!arguments.csv.empty()) {
      for (const std::filesystem::path& file : write_csv_files(records[i], csv_folders[i])) {
        text += file.string() + "\n";
      }
    }
  }
  if ((arguments.tensorboard.empty() && arguments.csv.empty()) || !arguments.out.empty()) {
    text += write_page(arguments, records, renew_seconds);
  }
  return text;
}

// Found before the watch waits for a run.
void require_file(const Arguments& arguments) {
  if (!arguments.out.empty() &&
      find_output_place(arguments.out, page_rules()).kind != OutputPlace::Kind::file) {
    throw ConfigError(
        fmt::format("--watch writes a page again and again: --out {} is not a file", arguments.out),
        TESSERA_HERE);
  }
}

int report(int argc, char** argv) {
  const std::optional<Arguments> arguments = parse(argc, argv);
  if (!arguments) {
    return 0;
  }
  if (arguments->watch_seconds > 0) {
    require_file(*arguments);
    watch_runs({.runs = arguments->runs,
                .seconds = arguments->watch_seconds,
                .read = [&] { return read_runs(*arguments); },
                .write =
                    [&](const std::vector<RunRecord>& records, bool is_over) {
                      return write_all(*arguments, records, is_over ? 0 : arguments->watch_seconds);
                    }});
    return 0;
  }
  const std::vector<RunRecord> records = read_runs(*arguments);
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (const std::size_t unread = records[i].unread_lines; unread > 0) {
      say_note(fmt::format("report: {}: passed over {} not of a training run", arguments->runs[i],
                           counted(static_cast<Index>(unread), "line")));
    }
  }
  fmt::print("{}", write_all(*arguments, records, 0));
  return 0;
}

}  // namespace
}  // namespace tessera::report

int main(int argc, char** argv) {
  return tessera::run_program("report", [&] { return tessera::report::report(argc, argv); });
}
