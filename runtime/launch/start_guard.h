// A time limit for the start of a run, before there is a watchdog.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

namespace tessera {

/// A thread that ends the process with status 8 and one line, which names host, process and what
/// the launcher calls its rank, where the start takes longer than the limit: MPI_Init waits for
/// ever for a rank that is stopped or hangs, and the watchdog needs all ranks for its own start.
/// The launcher then ends the other ranks, as with the watchdog.
///
/// Time during which the whole process was suspended does not count.
class StartGuard {
 public:
  /// Make it before MPI is initialised. Requires: limit_seconds > 0.
  explicit StartGuard(double limit_seconds);
  ~StartGuard();
  StartGuard(const StartGuard&) = delete;
  StartGuard& operator=(const StartGuard&) = delete;

  /// The start is over: from now on the watchdog, or nobody, looks after this process.
  void end() noexcept;

 private:
  void loop();

  double limit_seconds_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  bool ended_ = false;
  std::thread thread_;  // last: starts when all else is there
};

}  // namespace tessera
