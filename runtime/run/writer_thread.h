// A thread that writes beside training, one after another of its tasks, and what the ranks make of
// the ends of such tasks. Writer threads make no MPI call.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/step_exchange.h"

namespace tessera {

class WriterThread {
 public:
  WriterThread() = default;
  /// Waits for the task.
  ~WriterThread() { join(); }
  WriterThread(const WriterThread&) = delete;
  WriterThread& operator=(const WriterThread&) = delete;

  /// Waits for the task before, and begins this one.
  void start(std::function<void()> task);
  void join();
  /// `idle` before the first task; `failed` after one that threw.
  [[nodiscard]] WriterState state() const noexcept { return state_; }

 private:
  std::atomic<WriterState> state_{WriterState::idle};
  std::thread thread_;
};

/// The message of what is being handled.
[[nodiscard]] std::string failure_text();

/// How a task ended on all ranks.
struct Answers {
  std::vector<std::string> by_rank;  // without their first letters; where all ended well
  std::string failure;               // "rank 2: disk full", of the lowest rank; empty: none
  char mark = '+';                   // first letter of that rank's answer
};
/// `mine` begins with '+', or with another letter and why the task failed here, or is "?" where that is
/// not known. Collective; the same on every rank.
[[nodiscard]] Answers gather_answers(Communicator& comm, const std::string& mine);

}  // namespace tessera
