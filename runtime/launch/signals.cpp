#include "runtime/launch/signals.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "kernels/base/log.h"

namespace tessera {
namespace {

struct StopSignal {
  int number;
  StopReason reason;
};
// In the order of StopReason: the first that was sent is the reason.
constexpr std::array<StopSignal, 6> kStopSignals = {{{SIGINT, StopReason::interrupt},
                                                     {SIGTERM, StopReason::terminate},
                                                     {SIGHUP, StopReason::hangup},
                                                     {SIGXCPU, StopReason::cpu_limit},
                                                     {SIGUSR1, StopReason::usr1},
                                                     {SIGUSR2, StopReason::usr2}}};
constexpr double kFileSeconds = 1;  // between two looks for the stop file
// Saves differ: so much more than the last one took is left for the next.
constexpr double kSaveReserve = 1.25;
// For ranks and launcher to end after the save; the batch system's clock is not ours.
constexpr double kEndSeconds = 1;
constexpr double kJobEndSeconds = 20;

// One for each of kStopSignals.
using Received = std::array<std::atomic<bool>, kStopSignals.size()>;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may use it");

Received& the_received() noexcept {
  static Received received{};
  return received;
}

std::atomic<bool>& in_use() noexcept {
  static std::atomic<bool> installed{false};
  return installed;
}

void end_by_interrupt() noexcept {
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  (void)sigaction(SIGINT, &standard, nullptr);
  sigset_t interrupt;
  (void)sigemptyset(&interrupt);
  (void)sigaddset(&interrupt, SIGINT);
  (void)pthread_sigmask(SIG_UNBLOCK, &interrupt, nullptr);
  (void)raise(SIGINT);
}

extern "C" void note_signal(int number) {
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) {
    if (kStopSignals[i].number == number && the_received()[i].exchange(true) && number == SIGINT) {
      end_by_interrupt();
    }
  }
}

// Open MPI's launchers pass TERM on, also for INT and HUP, and kill the ranks a second later.
bool is_launcher_of_open_mpi(pid_t process) {
  constexpr std::array<std::string_view, 6> kNames = {"mpirun", "mpiexec", "orterun",
                                                      "orted",  "prterun", "prted"};
  std::ifstream file(fmt::format("/proc/{}/comm", process));
  std::string name;
  return std::getline(file, name) &&
         std::find(kNames.begin(), kNames.end(), name) != kNames.end() &&
         std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
}

std::atomic<bool>& launcher_signal() noexcept {
  static std::atomic<bool> received{false};
  return received;
}

std::atomic<bool>& launcher_signal_is_expected() noexcept {
  static std::atomic<bool> expected{false};
  return expected;
}

// Reported at once, since the step under way may take minutes.
void announce(const siginfo_t& signal) {
  const auto* const known =
      std::find_if(kStopSignals.begin(), kStopSignals.end(),
                   [&](const StopSignal& stop) { return stop.number == signal.si_signo; });
  const std::string name = stop_reason_text(known->reason);
  if (signal.si_signo == SIGTERM && signal.si_pid == getppid() &&
      is_launcher_of_open_mpi(signal.si_pid)) {
    launcher_signal() = true;
    if (launcher_signal_is_expected()) {
      return;
    }
    log_line(
        LogLevel::info,
        name +
            " from mpirun, which kills the ranks a second later: what is not saved by then is lost "
            "(kill -USR1 to mpirun, or --stop-file, leaves the time to save)");
  } else {
    log_line(LogLevel::info, name + ": stops when the step under way has ended");
  }
}

}  // namespace

bool launcher_ends_run() noexcept {
  return launcher_signal();
}

void expect_launcher_signal() noexcept {
  launcher_signal_is_expected() = true;
}

StopSignals::StopSignals() : former_actions_{} {
  static_assert(kSignals == kStopSignals.size());
  TESSERA_REQUIRE(!in_use().exchange(true), "one StopSignals at a time");
  for (std::atomic<bool>& received : the_received()) {  // made before a handler could need it
    received = false;
  }
  struct sigaction action = {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;  // a write under way continues
  (void)sigemptyset(&action.sa_mask);
  sigset_t set;
  (void)sigemptyset(&set);
  for (std::size_t i = 0; i < kSignals; ++i) {
    const int number = kStopSignals[i].number;
    TESSERA_REQUIRE(sigaction(number, nullptr, &former_actions_[i]) == 0, std::strerror(errno));
    if (number == SIGHUP && former_actions_[i].sa_handler == SIG_IGN) {
      continue;  // nohup: the run is to outlive its terminal
    }
    TESSERA_REQUIRE(sigaction(number, &action, nullptr) == 0, std::strerror(errno));
    (void)sigaddset(&set, number);
  }
  TESSERA_REQUIRE(pthread_sigmask(SIG_BLOCK, &set, &former_mask_) == 0, "cannot block signals");
  receiver_ = std::thread([this, set] {
    for (siginfo_t signal = {};;) {
      const int number = sigwaitinfo(&set, &signal);
      if (number < 0 && errno == EINTR) {
        continue;
      }
      if (number < 0 || leaving_) {
        return;
      }
      const bool is_first = !received().has_value();
      note_signal(number);
      if (is_first) {
        announce(signal);
      }
    }
  });
}

StopSignals::~StopSignals() {
  leaving_ = true;
  (void)pthread_kill(receiver_.native_handle(), SIGUSR1);  // wakes it; not noted
  receiver_.join();
  for (std::size_t i = 0; i < kSignals; ++i) {
    (void)sigaction(kStopSignals[i].number, &former_actions_[i],
                    nullptr);  // cannot fail: it came from there
  }
  (void)pthread_sigmask(SIG_SETMASK, &former_mask_, nullptr);
  in_use() = false;
}

std::optional<StopReason> StopSignals::received() noexcept {
  const Received& received = the_received();
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) {
    if (received[i]) {
      return kStopSignals[i].reason;
    }
  }
  return std::nullopt;
}

namespace {

// When it was last written, in ns since 1970; empty where there is none.
std::optional<std::int64_t> written_ns(const std::filesystem::path& file) {
  struct stat status = {};
  if (::stat(file.c_str(), &status) != 0) {
    return std::nullopt;
  }
  constexpr std::int64_t kSecond = 1'000'000'000;
  return status.st_mtim.tv_sec * kSecond + status.st_mtim.tv_nsec;
}

}  // namespace

StopRequests::StopRequests(const StopOptions& options, int rank)
    : options_(options),
      looks_for_file_(rank == 0 && !options.stop_file.empty()),
      start_(options.clock()),
      next_look_(start_) {
  if (!(options.max_seconds >= 0)) {
    throw ConfigError(fmt::format("--max-seconds {} must not be below 0", options.max_seconds),
                      TESSERA_HERE);
  }
  if (looks_for_file_) {
    std::error_code error;
    const std::filesystem::path folder = options.stop_file.parent_path();
    if (!folder.empty() && !std::filesystem::is_directory(folder, error)) {
      throw ConfigError(fmt::format("--stop-file {}: there is no folder {}, so it could never be "
                                    "written: make it, or give another name",
                                    options.stop_file.string(), folder.string()),
                        TESSERA_HERE);
    }
    if (std::filesystem::is_directory(options.stop_file, error)) {
      throw ConfigError(fmt::format("--stop-file {}: it is a folder; give the name of a file",
                                    options.stop_file.string()),
                        TESSERA_HERE);
    }
    old_file_ns_ = written_ns(options.stop_file);
  }
  if (old_file_ns_) {
    log_line(LogLevel::warning,
             fmt::format("stop file {} was there before this run: it counts once it is written to "
                         "(touch) again",
                         options.stop_file.string()));
  }
}

std::optional<StopReason> StopRequests::poll() {
  const std::optional<StopReason> signal = StopSignals::received();
  if (signal) {
    return signal;
  }
  const double now = options_.clock();
  if (looks_for_file_ && !file_seen_ && now >= next_look_) {
    next_look_ = now + kFileSeconds;
    const std::optional<std::int64_t> written = written_ns(options_.stop_file);
    file_seen_ = written && written != old_file_ns_;
    if (!written) {
      old_file_ns_.reset();
    }
    if (file_seen_) {
      std::error_code error;
      const bool empty = std::filesystem::is_regular_file(options_.stop_file, error) &&
                         std::filesystem::is_empty(options_.stop_file, error);
      if (!empty || !std::filesystem::remove(options_.stop_file, error)) {
        log_line(LogLevel::warning,
                 fmt::format("stop file {} is left where it is", options_.stop_file.string()));
      }
    }
  }
  if (file_seen_) {
    return StopReason::stop_file;
  }
  const double passed = seconds();
  if (last_poll_seconds_ >= 0) {
    longest_round_seconds_ = std::max(longest_round_seconds_, passed - last_poll_seconds_);
  }
  last_poll_seconds_ = passed;
  const double needed = kSaveReserve * save_seconds_ + longest_round_seconds_;
  if (options_.max_seconds > 0 && passed + needed + kEndSeconds >= options_.max_seconds) {
    return StopReason::time_limit;
  }
  if (options_.job_seconds > 0 && passed + needed + kJobEndSeconds >= options_.job_seconds) {
    return StopReason::job_end;
  }
  return std::nullopt;
}

void StopRequests::measured_save_seconds(double seconds) noexcept {
  save_seconds_ = seconds;
  save_is_measured_ = true;
}

bool StopRequests::wants_trial_save() const noexcept {
  constexpr double kEarly = 10;  // so that a save of two fifths of the limit still fits twice
  const auto passed = [this](double limit) { return limit > 0 && kEarly * seconds() >= limit; };
  return !save_is_measured_ && (passed(options_.max_seconds) || passed(options_.job_seconds));
}

double seconds_to_job_end() {
  const char* text = std::getenv("SLURM_JOB_END_TIME");
  if (text == nullptr) {
    return 0;
  }
  const std::string_view digits(text);
  std::int64_t end_time = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), end_time);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    return 0;
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const double left = static_cast<double>(end_time) - std::chrono::duration<double>(now).count();
  return std::max(left, 0.0);
}

double StopRequests::seconds() const noexcept {
  return options_.clock() - start_;
}

const char* stop_reason_text(StopReason reason) noexcept {
  switch (reason) {
    case StopReason::interrupt:
      return "signal INT";
    case StopReason::terminate:
      return "signal TERM";
    case StopReason::hangup:
      return "signal HUP";
    case StopReason::cpu_limit:
      return "signal XCPU";
    case StopReason::usr1:
      return "signal USR1";
    case StopReason::usr2:
      return "signal USR2";
    case StopReason::stop_file:
      return "the stop file";
    case StopReason::time_limit:
      return "--max-seconds";
    case StopReason::job_end:
      return "the end of the job";
  }
  return "an unknown reason";
}

}  // namespace tessera
