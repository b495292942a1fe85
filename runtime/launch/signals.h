// Reasons to stop before the last step: signals, a file, a time limit. They are only noted here;
// the trainer puts them to the vote in the step's exchange, so that all ranks stop after the same
// step.
#pragma once

#include <array>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "collectives/step_exchange.h"
#include "kernels/base/clock.h"

namespace tessera {

/// While it lives, INT, TERM, HUP, XCPU (the CPU time limit, ulimit -t), USR1 and USR2 are noted
/// and do not end the process; a second INT ends it at once. The first of them is reported at once,
/// in an info line, with what Open MPI's mpirun makes of it. HUP stays ignored where it is ignored
/// already, as under nohup. The destructor puts the former actions back. One at a time; make it in
/// main before any other thread.
///
/// The signals are blocked in the maker's thread and in all threads made after it, and received by
/// a thread of their own: oneDNN's generated GEMM code keeps data where the kernel would write a
/// handler's frame (seen with dnnl_sgemm of oneDNN 2.6: the heap is damaged), so no handler may
/// run on the stack of a thread that computes.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// What this process was sent so far: the first in the order of StopReason. Never
  /// blocks.
  [[nodiscard]] static std::optional<StopReason> received() noexcept;

 private:
  static constexpr std::size_t kSignals = 6;

  std::array<struct sigaction, kSignals> former_actions_;
  sigset_t former_mask_{};
  std::atomic<bool> leaving_{false};
  std::thread receiver_;
};

/// Open MPI's mpirun has sent TERM, and kills the ranks a second later.
[[nodiscard]] bool launcher_ends_run() noexcept;
/// From now on that TERM is not reported: what it follows from has been, and the command that
/// continues the run is to be the last line.
void expect_launcher_signal() noexcept;

struct StopOptions {
  std::filesystem::path stop_file{};  // empty: none
  double max_seconds = 0;             // from the start of this object; 0: no limit
  double job_seconds = 0;             // likewise: until the batch system ends the job; 0: not known
  double (*clock)() = host_seconds;   // seconds since some moment
};

/// Seconds until SLURM_JOB_END_TIME (seconds since 1970; Slurm 23.02 sets it, jobs/slurm/*.sbatch
/// do with older ones). 0 where it is not set, no number, or past: a job submitted from within
/// another inherits that one's.
[[nodiscard]] double seconds_to_job_end();

/// All reasons that one rank knows of. Rank 0 alone looks for the stop file.
class StopRequests {
 public:
  /// A stop file that is there already was left by an earlier run: it is reported, and counts once
  /// it is touched or made anew. Throws ConfigError: max_seconds below 0.
  StopRequests(const StopOptions& options, int rank);

  /// The reason to stop now, if there is one. Looks at the file system at most once a second;
  /// allocates nothing. A stop file that is seen counts from then on, and is removed if it is empty
  /// (as `touch` makes it), so that the next run does not stop at once.
  [[nodiscard]] std::optional<StopReason> poll();
  /// What a save takes, as far as is known: poll() asks to stop while there is time for it, for
  /// another round as long as the longest between two polls, and for the end of the processes.
  void expect_save_seconds(double seconds) noexcept { save_seconds_ = seconds; }
  /// A save was measured: from now on this is what one takes.
  void measured_save_seconds(double seconds) noexcept;
  /// The time is limited, a tenth of it is over, and no save was measured yet: one should be
  /// made, so that the last is not the first. True until one is measured.
  [[nodiscard]] bool wants_trial_save() const noexcept;
  /// Seconds since this object was made.
  [[nodiscard]] double seconds() const noexcept;

 private:
  StopOptions options_;
  bool looks_for_file_;
  bool file_seen_ = false;
  std::optional<std::int64_t> old_file_ns_;  // when the one of an earlier run was written
  double save_seconds_ = 0;
  bool save_is_measured_ = false;
  double longest_round_seconds_ = 0;
  double last_poll_seconds_ = -1;  // below 0: none yet
  double start_;                   // by the clock
  double next_look_;               // likewise
};

/// For the log: "signal USR1", "the stop file", "--max-seconds", "the end of the job".
[[nodiscard]] const char* stop_reason_text(StopReason reason) noexcept;

}  // namespace tessera
