#include "jobs/report/timeline.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/input_file.h"
#include "model/json_text.h"

namespace tessera::report {
namespace {

using nlohmann::json;

constexpr std::size_t kMostRanks = 16;    // drawn
constexpr double kShortest = 1.0 / 4000;  // of the step: ranges below may be joined

struct Range {
  double begin;  // microseconds
  double duration;
  std::size_t category;
  std::size_t name;
  int depth;
};

using Lanes = std::map<std::int64_t, std::vector<Range>>;

// Texts by number.
class Numbers {
 public:
  std::size_t of(const std::string& text) {
    const auto [entry, is_new] = numbers_.try_emplace(text, texts_.size());
    if (is_new) {
      texts_.push_back(text);
    }
    return entry->second;
  }
  [[nodiscard]] const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::map<std::string, std::size_t> numbers_;
  std::vector<std::string> texts_;
};

bool has_number(const json& object, const char* field) {
  return object.contains(field) && object[field].is_number();
}

bool has_integer(const json& object, const char* field) {
  return object.contains(field) && object[field].is_number_integer();
}

bool has_text(const json& object, const char* field) {
  return object.contains(field) && object[field].is_string();
}

std::int64_t step_of(const json& event) {
  return event.contains("args") && event["args"].is_object() && has_integer(event["args"], "step")
             ? event["args"]["step"].get<std::int64_t>()
             : -1;
}

bool is_range(const json& event) {
  return event.is_object() && event.value("ph", json()) == "X" && has_number(event, "ts") &&
         has_number(event, "dur") && has_integer(event, "pid") && has_integer(event, "tid") &&
         has_text(event, "name") && has_text(event, "cat") && step_of(event) >= 0;
}

// Sorted by begin, the longer first; depths by what has not ended yet.
void nest(std::vector<Range>& ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.duration > b.duration;
  });
  constexpr double kRounding = 1e-2;  // microseconds; the file has nanoseconds
  std::vector<double> open;
  for (Range& range : ranges) {
    while (!open.empty() && open.back() <= range.begin + kRounding) {
      open.pop_back();
    }
    range.depth = static_cast<int>(open.size());
    open.push_back(range.begin + range.duration);
  }
}

void join_short(std::vector<Range>& ranges, double shortest) {
  std::vector<Range> kept;
  for (const Range& range : ranges) {
    if (!kept.empty()) {
      Range& last = kept.back();
      const bool alike =
          last.category == range.category && last.name == range.name && last.depth == range.depth;
      if (alike && range.duration < shortest && last.duration < shortest &&
          range.begin - (last.begin + last.duration) < shortest / 4) {
        last.duration = range.begin + range.duration - last.begin;
        continue;
      }
    }
    kept.push_back(range);
  }
  ranges = std::move(kept);
}

json lanes_as_json(Lanes& lanes, const std::map<std::int64_t, std::string>& names, double origin,
                   double shortest) {
  json out = json::array();
  for (auto& [number, ranges] : lanes) {
    nest(ranges);
    join_short(ranges, shortest);
    json rows = json::array();
    for (const Range& range : ranges) {
      rows.push_back(
          {range.begin - origin, range.duration, range.category, range.name, range.depth});
    }
    const auto named = names.find(number);
    out.push_back({{"name", named == names.end() ? fmt::format("lane {}", number) : named->second},
                   {"ranges", std::move(rows)}});
  }
  return out;
}

}  // namespace

json read_timeline(const std::filesystem::path& file, std::int64_t wanted) {
  require_regular_file(file);
  std::ifstream in(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const json trace = parse_json(text, file.string());
  if (!trace.is_object() || !trace.contains("traceEvents") || !trace["traceEvents"].is_array()) {
    throw FormatError(fmt::format("{} is not a trace of train --trace", file.string()),
                      TESSERA_HERE);
  }
  const json& events = trace["traceEvents"];
  std::set<std::int64_t> steps;
  std::map<std::int64_t, std::map<std::int64_t, std::string>> lane_names;  // by rank
  for (const json& event : events) {
    if (is_range(event)) {
      steps.insert(step_of(event));
    } else if (event.is_object() && event.value("name", json()) == "thread_name" &&
               has_integer(event, "pid") && has_integer(event, "tid") && event.contains("args") &&
               has_text(event["args"], "name")) {
      lane_names[event["pid"].get<std::int64_t>()][event["tid"].get<std::int64_t>()] =
          event["args"]["name"].get<std::string>();
    }
  }
  if (steps.empty()) {
    throw FormatError(fmt::format("{} holds no range of a step", file.string()), TESSERA_HERE);
  }
  const std::int64_t step = wanted == 0 ? *steps.rbegin() : wanted;
  if (!steps.contains(step)) {
    throw ConfigError(fmt::format("--trace-step {}: {} has steps {} to {}", step, file.string(),
                                  *steps.begin(), *steps.rbegin()),
                      TESSERA_HERE);
  }

  Numbers categories;
  Numbers names;
  std::map<std::int64_t, Lanes> ranks;
  double begin = 0;
  double end = 0;
  bool is_first = true;
  for (const json& event : events) {
    if (!is_range(event) || step_of(event) != step) {
      continue;
    }
    const double ts = event["ts"].get<double>();
    const double duration = std::max(0.0, event["dur"].get<double>());
    begin = is_first ? ts : std::min(begin, ts);
    end = is_first ? ts + duration : std::max(end, ts + duration);
    is_first = false;
    ranks[event["pid"].get<std::int64_t>()][event["tid"].get<std::int64_t>()].push_back(
        {ts, duration, categories.of(event["cat"].get<std::string>()),
         names.of(event["name"].get<std::string>()), 0});
  }
  json drawn = json::array();
  for (auto& [rank, lanes] : ranks) {
    if (drawn.size() < kMostRanks) {
      drawn.push_back(
          {{"rank", rank},
           {"lanes", lanes_as_json(lanes, lane_names[rank], begin, (end - begin) * kShortest)}});
    }
  }
  return {{"step", step},
          {"first", *steps.begin()},
          {"last", *steps.rbegin()},
          {"duration", std::max(end - begin, 1.0)},
          {"categories", categories.texts()},
          {"names", names.texts()},
          {"ranks_left_out", ranks.size() - drawn.size()},
          {"ranks", std::move(drawn)}};
}

}  // namespace tessera::report
