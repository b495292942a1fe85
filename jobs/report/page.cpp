#include "jobs/report/page.h"

#include <fmt/format.h>

#include "jobs/report/page_files.h"
#include "model/json_text.h"

namespace tessera::report {
namespace {

using nlohmann::json;

constexpr std::string_view kPageStart = "<!DOCTYPE html>\n";
constexpr std::string_view kTitleStart = "<title>tessera:";

json as_json(const Columns& columns) {
  json out = json::object();
  for (const auto& [name, values] : columns.fields) {
    out[name] = values;
  }
  return out;
}

// Lines of events, turned into columns of what a curve needs.
json communication_columns(const std::vector<json>& lines) {
  json out = {{"step", json::array()}, {"bytes", json::array()}, {"operations", json::array()}};
  for (const json& line : lines) {
    for (const auto& [name, values] : out.items()) {
      const json value = line.value(name, json());
      values.push_back(value.is_number() ? value : json());
    }
  }
  return out;
}

json as_json(const PageRun& run) {
  const RunRecord& record = run.record;
  json evaluations = as_json(record.evaluations);
  for (const std::string& name : record.evaluation_name) {
    evaluations["eval_name"].push_back(name.empty() ? json() : json(name));
  }
  return {{"name", record.name},
          {"path", record.folder.string()},
          {"columns", as_json(record.steps)},
          {"evaluations", evaluations},
          {"events", record.events},
          {"warnings", record.warnings},
          {"configurations", record.configurations},
          {"communication", communication_columns(record.communication)},
          {"memory", record.memory},
          {"resident", record.resident},
          {"unread_lines", record.unread_lines},
          {"timeline", run.timeline},
          {"gemm_flops_per_second",
           run.gemm_flops_per_second > 0 ? json(run.gemm_flops_per_second) : json()}};
}

}  // namespace

std::string html_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string script_json(const json& value) {
  // In JSON these characters stand in texts alone, where \u escapes mean the same.
  const std::string text = shown_json(value);
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "\\u003c";
        break;
      case '>':
        out += "\\u003e";
        break;
      case '&':
        out += "\\u0026";
        break;
      default:
        out += c;
    }
  }
  return out;
}

bool is_page_start(std::string_view first_bytes) noexcept {
  return first_bytes.starts_with(kPageStart) &&
         first_bytes.find(kTitleStart) != std::string_view::npos;
}

std::string html_page(const std::vector<PageRun>& runs, const PageOptions& options) {
  json data = {{"tool", options.tool},
               {"made", options.made},
               {"renew_seconds", options.renew_seconds},
               {"runs", json::array()}};
  std::string title(kTitleStart);
  for (const PageRun& run : runs) {
    data["runs"].push_back(as_json(run));
    // through JSON, so that a name that is not UTF-8 is replaced here as there
    title +=
        fmt::format(" {}", html_text(json::parse(script_json(run.record.name)).get<std::string>()));
  }
  return fmt::format("{}<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                     "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                     "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                     "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
                     "{}</title>\n<style>\n{}</style>\n</head>\n<body>\n{}"
                     "<script type=\"application/json\" id=\"data\">{}</script>\n"
                     "<script>\n{}</script>\n</body>\n</html>\n",
                     kPageStart, title, page_files::kStyle, page_files::kBody, script_json(data),
                     page_files::kScript);
}

}  // namespace tessera::report
