#include "kernels/base/log.h"

#include <chrono>
#include <ctime>
#include <mutex>

#include <fmt/format.h>
#include <unistd.h>

#include "kernels/base/escaped_text.h"
#include "kernels/base/standard_streams.h"
#include "kernels/base/terminal.h"

namespace tessera {
namespace {

struct LogState {
  // Recursive: a listener that fails says so.
  std::recursive_mutex mutex;
  int rank = 0;
  int world_size = 1;
  std::string host;
  LogLevel lowest = LogLevel::info;
  std::function<void(LogLevel, std::string_view)> listener;
  std::string status;
  int status_descriptor = STDOUT_FILENO;
  bool output_lost = false;  // and reported so
};

LogState& state() {
  static LogState the_state;
  return the_state;
}

std::string time_of_day() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm local{};
  if (localtime_r(&now, &local) == nullptr) {
    return "--:--:--";
  }
  return fmt::format("{:02d}:{:02d}:{:02d}", local.tm_hour, local.tm_min, local.tm_sec);
}

// Where stderr takes nothing, nothing can be done. Where stdout takes nothing, that is reported
// once, and a later line is tried all the same: a full disk may have room again.
void put(int descriptor, std::string_view text) {
  const int code = write_to_stream(descriptor, text);
  LogState& log = state();
  if (code == 0 || descriptor != STDOUT_FILENO || log.output_lost) {
    return;
  }
  log.output_lost = true;
  log.status.clear();
  log_line(LogLevel::warning,
           fmt::format("cannot write to standard output: {}; the run continues without it",
                       output_failure(code)));
}

std::string_view colour_of(LogLevel level) {
  return level == LogLevel::error ? kRed : level == LogLevel::warning ? kYellow : "";
}

}  // namespace

const char* level_name(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::warning:
      return "warning";
    case LogLevel::error:
      return "error";
    default:
      return "info";
  }
}

void set_log_identity(int rank, int world_size, std::string host, LogLevel lowest) {
  LogState& log = state();
  const std::lock_guard lock(log.mutex);
  log.rank = rank;
  log.world_size = world_size;
  log.host = std::move(host);
  log.lowest = lowest;
}

void log_line(LogLevel level, std::string_view message) {
  LogState& log = state();
  const std::lock_guard lock(log.mutex);
  const bool plain = level == LogLevel::info && log.rank == 0;
  if (level < log.lowest || (level == LogLevel::info && log.rank != 0)) {
    return;
  }
  std::string line;
  if (plain) {
    line = for_terminal(fmt::format("{}\n", shown_text(message)), STDERR_FILENO);
  } else {
    const std::string who =
        log.world_size > 1 ? fmt::format(" rank {} on {}", log.rank, log.host) : std::string();
    const std::string time = fmt::format("[{}{}] ", time_of_day(), who);
    const std::string name = fmt::format("{}:", level_name(level));
    line = for_terminal(fmt::format("{}{} {}\n", time, name, shown_text(message)), STDERR_FILENO);
    if (takes_colours(STDERR_FILENO)) {  // codes take no columns
      if (const std::size_t at = line.find(name); at != std::string::npos) {
        line.insert(at + name.size(), kNormal);
        line.insert(at, colour_of(level));
      }
    }
  }
  if (!log.status.empty()) {
    put(log.status_descriptor, kClearLine);
  }
  put(STDERR_FILENO, line);  // one write a line, so that lines of several ranks do not mix
  if (!log.status.empty()) {
    put(log.status_descriptor, log.status);
  }
  if (level >= LogLevel::warning && log.listener) {
    log.listener(level, message);
  }
}

void set_log_listener(std::function<void(LogLevel, std::string_view)> listener) {
  LogState& log = state();
  const std::lock_guard lock(log.mutex);
  log.listener = std::move(listener);
}

void show_status(int descriptor, std::string text) {
  LogState& log = state();
  const std::lock_guard lock(log.mutex);
  log.status = std::move(text);
  log.status_descriptor = descriptor;
  put(descriptor, fmt::format("{}{}", kClearLine, log.status));
}

void say_text(std::string_view text) {
  const std::lock_guard lock(state().mutex);
  end_status();
  put(STDOUT_FILENO, shown_text(text));
}

void end_status() {
  LogState& log = state();
  const std::lock_guard lock(log.mutex);
  if (!log.status.empty()) {
    log.status.clear();
    put(log.status_descriptor, "\n");
  }
}

void clear_status() {
  LogState& log = state();
  const std::lock_guard lock(log.mutex);
  if (!log.status.empty()) {
    log.status.clear();
    put(log.status_descriptor, kClearLine);
  }
}

}  // namespace tessera
