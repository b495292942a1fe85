#include "runtime/launch/watchdog.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/base/log.h"
#include "kernels/base/process_exit.h"
#include "runtime/launch/signals.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

constexpr std::chrono::milliseconds kTick{200};
// A tick that took longer than this was a suspended process: only this much of it counts.
constexpr std::chrono::seconds kLongestTick{1};
constexpr std::chrono::seconds kHealthInterval{1};
// A neighbour whose heartbeat is older than this, or than half the limit, is stopped, not slow.
constexpr double kSilenceSeconds = 2.0;
// What the launcher has to end the ranks of a run that lost one.
constexpr double kLauncherSeconds = 10.0;
// From a loss, or the launcher's TERM, to the command that continues the run: behind what ranks of other
// hosts say of that TERM, and before the launcher's KILL a second later.
constexpr double kCommandSeconds = 0.5;
// For the watchdogs of other hosts, whose limits pass at about the same time, to say their part
// before the launcher ends them.
constexpr std::chrono::milliseconds kLastWords{1000};
// For the report and the abort.
constexpr std::chrono::seconds kExitTimeout{3};
constexpr int kHangStatus = 8;
constexpr int kCommStatus = 6;

std::int64_t as_ns(Clock::time_point time) {
  return std::chrono::duration_cast<nanoseconds>(time.time_since_epoch()).count();
}

double seconds_between(std::int64_t begin_ns, std::int64_t end_ns) {
  constexpr double kNanosecond = 1e-9;
  return static_cast<double>(end_ns - begin_ns) * kNanosecond;
}

double as_seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

std::string continue_text(const std::string& command) {
  return fmt::format("to continue, with your launcher's options: {}", command);
}

Watchdog::Attachment::~Attachment() {
  const std::lock_guard lock(owner_->mutex_);
  owner_->communication_ = {};
}

Watchdog::Watchdog(MpiSession& session, double timeout_seconds, std::string command)
    : rank_(session.rank()),
      host_(session.host()),
      timeout_seconds_(timeout_seconds),
      command_(std::move(command)),
      board_(session) {
  if (!(timeout_seconds > 0)) {
    throw ConfigError(fmt::format("--timeout-seconds {} must be above 0", timeout_seconds),
                      TESSERA_HERE);
  }
  thread_ = std::thread([this] { loop(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  thread_.join();
  board_.leave();
}

Watchdog::Attachment Watchdog::watch(GuardedCommunication communication) {
  const std::lock_guard lock(mutex_);
  TESSERA_REQUIRE(!communication_.check_health && !communication_.abort, "one is guarded already");
  communication_ = std::move(communication);
  return Attachment(*this);
}

void Watchdog::loop() {
  std::uint64_t last_beats = progress_snapshot().beats;
  Clock::time_point last_tick = Clock::now();
  Clock::time_point last_progress = last_tick;
  Clock::time_point next_health = last_tick + kHealthInterval;
  Clock::duration idle{0};
  std::unique_lock lock(mutex_);
  while (!ending_) {
    const ProgressSnapshot snapshot = progress_snapshot();
    const Clock::time_point now = Clock::now();
    if (snapshot.beats != last_beats) {
      last_beats = snapshot.beats;
      last_progress = now;
      idle = Clock::duration{0};
    } else {
      idle += std::min<Clock::duration>(now - last_tick, kLongestTick);
    }
    last_tick = now;
    board_.write(snapshot, as_ns(now), as_ns(last_progress));
    look_for_losses(as_ns(now), lock);
    follow_launcher(as_ns(now));
    if (as_seconds(idle) >= timeout_seconds_) {
      lock.unlock();
      end_run(
          kHangStatus,
          fmt::format("hang: rank {} has made no progress for {:.1f} s (--timeout-seconds {:g}); "
                      "all ranks end with exit status {}",
                      rank_, as_seconds(idle), timeout_seconds_, kHangStatus));
    }
    if (now >= next_health && communication_.check_health) {
      next_health = now + kHealthInterval;
      try {
        communication_.check_health();
      } catch (const std::exception& error) {
        const auto* own = dynamic_cast<const Error*>(&error);
        const std::string message = own != nullptr ? own->message() : error.what();
        lock.unlock();
        end_run(kCommStatus,
                fmt::format("{}; all ranks end with exit status {}", message, kCommStatus));
      }
    }
    wake_.wait_for(lock, kTick);
  }
}

void Watchdog::look_for_losses(std::int64_t now_ns, std::unique_lock<std::mutex>& lock) {
  const std::ptrdiff_t found = board_.lost_neighbour();
  if (found < 0) {
    return;
  }
  const auto index = static_cast<std::size_t>(found);
  if (board_.claim_loss(index)) {
    log_line(LogLevel::error,
             fmt::format("rank {} ({}) is gone (killed?), last seen in {}", board_.ranks()[index],
                         host_, to_text(HostBoard::last_snapshot(board_.slot(index)))));
    reports_loss_ = true;
  }
  if (loss_ns_ == 0) {
    expect_launcher_signal();
    loss_ns_ = now_ns;
    return;
  }
  if (reports_loss_ && seconds_between(loss_ns_, now_ns) > kCommandSeconds) {
    reports_loss_ = false;
    report_command(LogLevel::error);
  }
  if (seconds_between(loss_ns_, now_ns) > kLauncherSeconds) {
    lock.unlock();
    end_run(kCommStatus,
            fmt::format("rank {} is gone and the launcher has not ended the others in {:g} s; all "
                        "ranks end with exit status {}",
                        board_.ranks()[index], kLauncherSeconds, kCommStatus));
  }
}

void Watchdog::report(const std::string& headline) {
  log_line(LogLevel::error, headline);
  const std::int64_t now = as_ns(Clock::now());
  const double silence = std::min(kSilenceSeconds, timeout_seconds_ / 2);
  for (std::size_t i = 0; i < board_.ranks().size(); ++i) {
    const BoardSlot& slot = board_.slot(i);
    const double silent = seconds_between(slot.heartbeat_ns, now);
    const std::string doing = to_text(HostBoard::last_snapshot(slot));
    std::string state;
    if (slot.left) {
      state = "has finished";
    } else if (slot.heartbeat_ns == 0) {
      state = "never gave a sign of life";
    } else if (silent > silence) {
      state = fmt::format("no sign of life for {:.1f} s, last seen in {}", silent, doing);
    } else {
      state = fmt::format("{}, no progress for {:.1f} s", doing,
                          seconds_between(slot.progress_ns, now));
    }
    log_line(LogLevel::error, fmt::format("rank {} ({}): {}", board_.ranks()[i], host_, state));
  }
  report_command(LogLevel::error);
}

void Watchdog::report_command(LogLevel level) const {
  if (!command_.empty()) {
    log_line(level, continue_text(command_));
  }
}

void Watchdog::follow_launcher(std::int64_t now_ns) {
  if (rank_ != 0 || loss_ns_ != 0 || !launcher_ends_run()) {
    return;
  }
  if (launcher_ns_ == 0) {
    launcher_ns_ = now_ns;
    follows_launcher_ = true;
  }
  if (follows_launcher_ && seconds_between(launcher_ns_, now_ns) > kCommandSeconds) {
    follows_launcher_ = false;
    report_command(LogLevel::info);
  }
}

void Watchdog::end_run(int exit_status, const std::string& headline) {
  exit_process(exit_status, kExitTimeout, [&] {
    if (board_.claim_report()) {
      report(headline);
    }
    std::this_thread::sleep_for(kLastWords);
    const std::lock_guard guard(mutex_);
    if (communication_.abort) {
      communication_.abort();
    }
  });
}

}  // namespace tessera
