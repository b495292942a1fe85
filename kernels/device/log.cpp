#include "kernels/device/log.h"

#include <chrono>
#include <cstdio>
#include <ctime>
#include <mutex>

#include <fmt/format.h>

namespace tessera {
namespace {

struct LogState {
  std::mutex mutex;
  int rank = 0;
  int world_size = 1;
  std::string host;
  LogLevel lowest = LogLevel::info;
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

const char* level_name(LogLevel level) {
  switch (level) {
    case LogLevel::warning:
      return "warning";
    case LogLevel::error:
      return "error";
    default:
      return "info";
  }
}

}  // namespace

void set_log_identity(int rank, int world_size, std::string host, LogLevel lowest) {
  LogState& log = state();
  const std::lock_guard lock(log.mutex);
  log.rank = rank;
  log.world_size = world_size;
  log.host = std::move(host);
  log.lowest = lowest;
}

LogLevel log_level() noexcept {
  return state().lowest;
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
    line = fmt::format("{}\n", message);
  } else if (log.world_size > 1) {
    line = fmt::format("[{} rank {} on {}] {}: {}\n", time_of_day(), log.rank, log.host,
                       level_name(level), message);
  } else {
    line = fmt::format("[{}] {}: {}\n", time_of_day(), level_name(level), message);
  }
  // One write a line, so that lines of several ranks do not mix. Nothing can be done if it fails.
  (void)std::fwrite(line.data(), 1, line.size(), stderr);
  (void)std::fflush(stderr);
}

}  // namespace tessera
