// report --watch: everything is written again and again beside runs that are under way.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "jobs/report/metrics_file.h"

namespace tessera::report {

struct Watch {
  std::vector<std::string> runs;  // as read_run takes them
  double seconds = 0;             // between two pages
  std::function<std::vector<RunRecord>()> read;
  /// Returns what it wrote, for people. `is_over`: it is the last time.
  std::function<std::string(const std::vector<RunRecord>&, bool is_over)> write;
};

/// Waits until every run has a first line, and then reads and writes until all have ended, or a signal
/// comes: between two pages, so that none is left half written. Files that cannot be read for a while
/// leave the last page as it is. Tells on the terminal what it waits for, and of a run that has not
/// ended and has written nothing for five minutes. Throws what the first `read` and each `write` throw.
void watch_runs(const Watch& watch);

}  // namespace tessera::report
