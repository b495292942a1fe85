#include "runtime/monitor/step_trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/output_file.h"
#include "kernels/device/device_backend.h"
#include "model/json_text.h"
#include "runtime/launch/agree.h"

namespace tessera {
namespace {

// Lanes in the order in which they are shown; others come behind.
constexpr std::array kLanes = {"host",   "compute",  "communication", "page in",
                               "update", "page out", "data",          "save"};

// What the file begins with, and is recognised by.
constexpr std::string_view kTraceStart = R"({"displayTimeUnit":"ms","otherData":{)";

// The time between two events of an idle stream is about so long: no wait.
constexpr double kShortestWait = 2e-6;

constexpr std::int64_t kNanosecondsPerMicrosecond = 1000;
constexpr double kNanosecondsPerSecond = 1e9;

std::string_view category_name(TraceCategory category) {
  constexpr std::array<std::string_view, 8> kNames = {"compute", "exchange", "gather", "paging",
                                                      "save",    "data",     "host",   "exposed"};
  return kNames.at(static_cast<std::size_t>(category));
}

std::string json_string(std::string_view text) {
  return json_text(nlohmann::json(std::string(text)));
}

// Whole nanoseconds as microseconds, so that sums of what is written stay exact.
std::string microseconds(std::int64_t nanoseconds) {
  return fmt::format("{}{}.{:03d}", nanoseconds < 0 ? "-" : "",
                     std::abs(nanoseconds) / kNanosecondsPerMicrosecond,
                     std::abs(nanoseconds) % kNanosecondsPerMicrosecond);
}

std::size_t lane_number(std::string_view lane, std::vector<std::string>& lanes) {
  const auto found = std::find(lanes.begin(), lanes.end(), lane);
  if (found == lanes.end()) {
    lanes.emplace_back(lane);
    return lanes.size() - 1;
  }
  return static_cast<std::size_t>(found - lanes.begin());
}

}  // namespace

double StepTrace::clock() {
  return host_seconds();
}

StepTrace::StepTrace(StepTraceOptions options, Communicator& comm, Device device)
    : options_(std::move(options)),
      comm_(comm),
      device_(device),
      clock_stream_(device, StreamPriority::high, "trace") {
  TESSERA_REQUIRE(1 <= options_.first && options_.first <= options_.last, "steps of a trace");
}

StepTrace::~StepTrace() {
  TraceSink* self = this;
  trace::sink().compare_exchange_strong(self, nullptr);
}

void StepTrace::begin_step(std::int64_t step) {
  step_ = step;
  if (done_ || listening_ || step < options_.first || step > options_.last) {
    return;
  }
  base_.emplace(device_, "trace.base");
  constexpr int kTries = 16;
  double shortest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTries; ++i) {
    // The last record counts, so the first try that is as fast as any before ends the search.
    const double before = clock();
    base_->record(clock_stream_);
    base_->synchronize();
    const double after = clock();
    base_host_ = (before + after) / 2;
    if (after - before <= shortest && i > 2) {
      break;
    }
    shortest = std::min(shortest, after - before);
  }
  const std::string mine = fmt::format("{}", clock() + options_.clock_offset);
  origin_ = std::stod(comm_.gather_text(mine).front());
  first_ = step;
  listening_ = true;
  trace::sink().store(this, std::memory_order_release);
}

std::optional<TraceOutcome> StepTrace::end_step(std::int64_t step) {
  return step >= options_.last ? finish() : std::nullopt;
}

std::int64_t StepTrace::add(Range range) {
  range.step = step_;
  ranges_.push_back(std::move(range));
  return std::ssize(ranges_) - 1;
}

std::int64_t StepTrace::begin(const TraceLabel& label, Stream& stream) {
  const std::lock_guard lock(mutex_);
  Event& from = events_.emplace_back(device_, "trace.begin");
  Event& to = events_.emplace_back(device_, "trace.end");
  from.record(stream);
  return add({.label = label, .lane = stream.name(), .step = 0, .from = &from, .to = &to});
}

std::int64_t StepTrace::begin(const TraceLabel& label, const char* lane) {
  const std::lock_guard lock(mutex_);
  return add({.label = label, .lane = lane, .step = 0, .begin = clock()});
}

void StepTrace::end(std::int64_t number, Stream* stream) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (number >= std::ssize(ranges_)) {
      return;  // of a trace that has been written
    }
    Range& range = ranges_.at(static_cast<std::size_t>(number));
    if (stream != nullptr) {
      range.to->record(*stream);
    } else {
      range.end = clock();
    }
    range.ended = true;
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
}

// This rank's events, separated by commas.
std::string StepTrace::events_text() {
  const double now = clock();
  std::vector<std::string> lanes(kLanes.begin(), kLanes.end());
  std::string text;
  const auto append = [&text](const std::string& event) {
    text += text.empty() ? "" : ",\n";
    text += event;
  };
  const auto name = [&](const char* what, std::size_t lane, const std::string& args) {
    append(fmt::format(R"({{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{{}}}}})", what,
                       comm_.rank(), lane, args));
  };
  std::vector<bool> used(lanes.size(), false);
  for (const Range& range : ranges_) {
    double begin = range.begin;
    double end = range.ended ? range.end : now;
    if (range.from != nullptr) {
      begin = base_host_ + range.from->seconds_since(*base_);
      end = range.ended ? base_host_ + range.to->seconds_since(*base_) : now;
    }
    if (range.label.category == TraceCategory::exposed && end - begin < kShortestWait) {
      continue;
    }
    const auto nanoseconds = [this](double seconds) {
      return std::llround((seconds + options_.clock_offset - origin_) * kNanosecondsPerSecond);
    };
    const std::size_t lane = lane_number(range.lane, lanes);
    used.resize(lanes.size(), false);
    used[lane] = true;
    append(fmt::format(
        R"({{"name":{},"cat":"{}","ph":"X","ts":{},"dur":{},"pid":{},"tid":{},"args":{{"step":{}{}}}}})",
        json_string(range.label.name), category_name(range.label.category),
        microseconds(nanoseconds(begin)), microseconds(nanoseconds(end) - nanoseconds(begin)),
        comm_.rank(), lane, range.step,
        range.label.detail.empty()
            ? std::string()
            : fmt::format(R"(,"unit":{})", json_string(range.label.detail))));
  }
  name("process_name", 0,
       fmt::format(R"("name":{})",
                   json_string(fmt::format("rank {} ({})", comm_.rank(), options_.host))));
  name("process_sort_index", 0, fmt::format(R"("sort_index":{})", comm_.rank()));
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    if (used[lane]) {
      name("thread_name", lane, fmt::format(R"("name":{})", json_string(lanes[lane])));
      name("thread_sort_index", lane, fmt::format(R"("sort_index":{})", lane));
    }
  }
  return text;
}

OutputRules trace_file_rules() {
  return {.option = "--trace",
          .what = "a timeline of train",
          .is_ours = [](const std::filesystem::path& path) {
            return first_bytes(path, kTraceStart.size()) == kTraceStart;
          }};
}

TraceOutcome StepTrace::write(const std::vector<std::string>& parts) const {
  const std::string text =
      fmt::format("{}\"first_step\":{},\"last_step\":{},"
                  "\"ranks\":{},"
                  "\"device\":{}}},\n\"traceEvents\":[\n{}\n]}}\n",
                  kTraceStart, first_, step_, comm_.world_size(),
                  json_string(device_info(device_).name), fmt::join(parts, ",\n"));
  try {
    write_output(options_.file, trace_file_rules(), text);
    return {true, fmt::format("the timeline of steps {} to {} is in {}", first_, step_,
                              options_.file.string())};
  } catch (const Error& error) {
    return {false, fmt::format("no timeline: {}", error.message())};
  }
}

std::optional<TraceOutcome> StepTrace::finish() {
  if (!listening_) {
    return std::nullopt;
  }
  trace::sink().store(nullptr, std::memory_order_release);
  listening_ = false;
  done_ = true;
  const std::lock_guard lock(mutex_);
  // One rank's failure must not leave the others in the gathering.
  std::string mine;
  try {
    if (!failure_.empty()) {
      throw DeviceError(failure_, TESSERA_HERE);
    }
    for (const Event& event : events_) {
      event.synchronize();
    }
    mine = "+" + events_text();
  } catch (const std::exception&) {
    mine = "-" + failure_of(std::current_exception()).message;
  }
  ranges_.clear();
  events_.clear();
  base_.reset();
  std::vector<std::string> parts = comm_.gather_text(mine);
  if (comm_.rank() != 0) {
    return std::nullopt;
  }
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank].front() == '-') {
      return TraceOutcome{false,
                          fmt::format("no timeline: rank {}: {}", rank, parts[rank].substr(1))};
    }
    parts[rank].erase(0, 1);
  }
  return write(parts);
}

}  // namespace tessera
