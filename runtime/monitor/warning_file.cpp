#include "runtime/monitor/warning_file.h"

#include <cerrno>
#include <chrono>
#include <mutex>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "kernels/base/input_file.h"
#include "kernels/base/log.h"
#include "kernels/base/progress.h"
#include "model/json_text.h"

namespace tessera {

namespace {

constexpr std::size_t kMostHeld = 1000;
constexpr const char* kFileName = "warnings.jsonl";

struct HeldWarnings {
  std::mutex mutex;
  std::vector<std::string> lines;  // until there is a file
  std::filesystem::path file;      // empty: not yet
};

HeldWarnings& held() {
  static HeldWarnings the_warnings;
  return the_warnings;
}

void append(const std::filesystem::path& file, const std::string& line) {
  const OpenedFile opened = open_regular_file(file, O_WRONLY | O_CREAT | O_APPEND);
  if (opened.is_open()) {
    // One write, so that lines of several ranks do not mix; its message was written to stderr.
    [[maybe_unused]] const ssize_t written = ::write(opened.descriptor, line.data(), line.size());
    (void)::close(opened.descriptor);
  }
}

}  // namespace

void hold_warnings(int rank, const std::string& host) {
  set_log_listener([rank, host](LogLevel level, std::string_view message) {
    using std::chrono::system_clock;
    const nlohmann::ordered_json json = {{"step", progress().step.load(std::memory_order_relaxed)},
                                         {"event", level_name(level)},
                                         {"time", system_clock::to_time_t(system_clock::now())},
                                         {"text", std::string(message)},
                                         {"rank", rank},
                                         {"host", host}};
    const std::string line = json_text(json) + "\n";
    HeldWarnings& warnings = held();
    const std::lock_guard lock(warnings.mutex);
    if (!warnings.file.empty()) {
      append(warnings.file, line);
    } else if (warnings.lines.size() < kMostHeld) {
      warnings.lines.push_back(line);
    }
  });
}

void look_at_warning_file(const std::filesystem::path& out) {
  const std::filesystem::path file = out / kFileName;
  if (const OpenedFile opened = open_regular_file(file, O_WRONLY | O_APPEND); opened.is_open()) {
    (void)::close(opened.descriptor);
  } else if (opened.code != ENOENT) {
    log_line(LogLevel::warning, fmt::format("cannot write {}: {}; warnings are on stderr alone",
                                            file.string(), opened.failure));
  }
}

void keep_warnings(const std::filesystem::path& out) {
  HeldWarnings& warnings = held();
  const std::lock_guard lock(warnings.mutex);
  warnings.file = out / kFileName;
  for (const std::string& line : warnings.lines) {
    append(warnings.file, line);
  }
  warnings.lines.clear();
}

}  // namespace tessera
