// Ends a run that hangs: with a report of what every rank of the host was doing, and with exit
// status 8.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "kernels/base/log.h"
#include "runtime/launch/host_board.h"

namespace tessera {

class MpiSession;

/// The line that ends the output of a run which has not come to its last step.
[[nodiscard]] std::string continue_text(const std::string& command);

/// What the watchdog needs of a communicator that works behind the host's back (NCCL).
struct GuardedCommunication {
  /// Throws if a peer failed; never blocks. Called once a second: a failure ends the run with
  /// status 6.
  std::function<void()> check_health;
  /// Makes blocked calls return (Communicator::abort). Called once, before the process ends; the
  /// threads that it wakes stay where they are (kernels/base/process_exit.h).
  std::function<void()> abort;
};

/// A thread that watches progress.h, and the processes of the other ranks of this host.
///
/// When nothing has moved for the time limit it writes the
/// report, aborts the guarded communication and ends the process with _exit: MPI is not called,
/// which may be what hangs. The launcher then ends the other ranks, stopped ones too; under srun
/// give -K.
///
/// A rank of this host that is gone without a word (killed, out of memory) is named with what it
/// was last seen in. The launcher should end the others then; if it does not, the process ends with
/// status 6. After a loss, and after the launcher's TERM, the last line is the command that continues
/// the run.
///
/// Whatever takes long by design (loading, pinning, saving) must call enter_phase now and then.
/// Time during which the whole process was suspended does not count.
class Watchdog {
 public:
  /// Detaches what `watch` attached. Make it after the communicator, so that it goes before it.
  class Attachment {
   public:
    explicit Attachment(Watchdog& owner) noexcept : owner_(&owner) {}
    ~Attachment();
    Attachment(const Attachment&) = delete;
    Attachment& operator=(const Attachment&) = delete;

   private:
    Watchdog* owner_;
  };

  /// `command`: what a user runs to continue (continue_command); empty: it is not reported. Collective. Throws ConfigError: timeout_seconds not above 0.
  Watchdog(MpiSession& session, double timeout_seconds, std::string command = {});
  /// Ends the thread; never waits for a peer.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// One communication at a time.
  [[nodiscard]] Attachment watch(GuardedCommunication communication);

 private:
  void loop();
  // Looks for a neighbour that is gone; ends the process if the launcher has not, some time after.
  void look_for_losses(std::int64_t now_ns, std::unique_lock<std::mutex>& lock);
  // What the thread does on exit.
  [[noreturn]] void end_run(int exit_status, const std::string& headline);
  void report(const std::string& headline);
  void report_command(LogLevel level) const;
  // Rank 0: the command behind what a TERM of the launcher made it say.
  void follow_launcher(std::int64_t now_ns);

  int rank_;
  std::string host_;
  double timeout_seconds_;
  std::string command_;
  HostBoard board_;
  std::int64_t loss_ns_ = 0;      // when the thread saw that a neighbour is gone; 0 before
  bool reports_loss_ = false;     // this rank is the one that names what to do, a little later
  std::int64_t launcher_ns_ = 0;  // when the thread saw that the launcher ends the run; 0 before
  bool follows_launcher_ = false;
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  bool ending_ = false;
  GuardedCommunication communication_;
  std::thread thread_;  // last: starts when all else is there
};

}  // namespace tessera
