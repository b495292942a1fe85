#include "jobs/report/watch.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/file_status.h"

namespace tessera::report {
namespace {

constexpr std::chrono::minutes kSilence{5};

void say(const std::string& text) {
  fmt::print("{}", text);
  std::fflush(stdout);
}

sigset_t blocked_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int each : {SIGINT, SIGTERM, SIGHUP}) {
    sigaddset(&signals, each);
  }
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

// True where the time has passed; false where a signal ends the watch.
bool wait_for(double seconds, const sigset_t& signals) {
  constexpr double kNanoseconds = 1e9;
  const double whole = std::floor(seconds);
  const timespec time = {static_cast<std::time_t>(whole),
                         static_cast<long>((seconds - whole) * kNanoseconds)};
  int signal = -1;
  do {
    signal = sigtimedwait(&signals, nullptr, &time);
  } while (signal < 0 && errno == EINTR);
  return signal < 0;
}

// A file without a whole line is one that train has just made.
bool has_begun(const std::string& run) {
  const std::filesystem::path file = metrics_file(run);
  if (!path_exists(file)) {
    return false;
  }
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) {
    return true;  // read_run says what is wrong with it
  }
  std::ifstream in(file, std::ios::binary);
  std::string line;
  return !in || (std::getline(in, line) && !in.eof());
}

// The last thing that a run writes is its end; one that continues writes more.
bool has_ended(const RunRecord& record) {
  return !record.events.empty() && record.events.back().value("event", "") == "end";
}

// False where a signal ends the watch.
bool wait_for_first_lines(const Watch& watch, const sigset_t& signals) {
  for (const std::string& run : watch.runs) {
    for (bool is_said = false; !has_begun(run); is_said = true) {
      if (!is_said) {
        say(fmt::format("waiting for {}: the run has written no metrics.jsonl yet; Ctrl-C ends "
                        "it\n",
                        run));
      }
      if (!wait_for(watch.seconds, signals)) {
        return false;
      }
    }
  }
  return true;
}

// Tells of the runs that may never write again, once for each silence.
class SilentRuns {
 public:
  void look_at(const std::string& run, const RunRecord& record) {
    std::error_code error;
    const auto written = std::filesystem::last_write_time(metrics_file(run), error);
    const auto silence = std::filesystem::file_time_type::clock::now() - written;
    if (error || silence < kSilence || has_ended(record)) {
      said_.erase(run);
    } else if (said_.insert(run).second) {
      say(fmt::format("{}: no new line for {} minutes, and no end: the run is in a long step or "
                      "save, or was killed\n",
                      run, std::chrono::duration_cast<std::chrono::minutes>(silence).count()));
    }
  }

 private:
  std::set<std::string> said_;
};

}  // namespace

void watch_runs(const Watch& watch) {
  const sigset_t signals = blocked_signals();
  if (!wait_for_first_lines(watch, signals)) {
    return;
  }
  SilentRuns silent;
  std::string problem;  // of the last read; empty: none
  bool is_first = true;
  do {
    std::vector<RunRecord> records;
    try {
      records = watch.read();
      problem.clear();
    } catch (const Error& error) {
      if (is_first) {
        throw;
      }
      if (problem != error.message()) {
        problem = error.message();
        say(fmt::format("{}; the last page stays until it can be read\n", problem));
      }
      continue;
    }
    const bool is_over = std::all_of(records.begin(), records.end(), has_ended);
    const std::string text = watch.write(records, is_over);
    if (is_over) {
      say(text + "all runs have ended\n");
      return;
    }
    if (is_first) {
      say(text + fmt::format("written again every {:g} s; Ctrl-C ends it\n", watch.seconds));
    }
    is_first = false;
    for (std::size_t i = 0; i < records.size(); ++i) {
      silent.look_at(watch.runs[i], records[i]);
    }
  } while (wait_for(watch.seconds, signals));
}

}  // namespace tessera::report
