// A program that fails, hangs or stops on demand: rank_probe MODE [ARGUMENT]. The tests beside it
// say what must come of it. Every rank first prints "pid RANK PID", so that they can send signals
// and see whether a process is left.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "collectives/communicator.h"
#include "collectives/mpi_control.h"
#include "collectives/mpi_session.h"
#include "collectives/step_exchange.h"
#include "kernels/base/error.h"
#include "kernels/base/progress.h"
#include "runtime/launch/agree.h"
#include "runtime/launch/run_job.h"
#include "runtime/launch/signals.h"
#include "runtime/launch/startup_check.h"
#include "runtime/launch/watchdog.h"

namespace tessera {
namespace {

constexpr int kSaved = 85;             // design's table: saved; the same command continues
constexpr double kTimeoutSeconds = 3;  // of the watchdog
constexpr double kStartSeconds = 6;    // of a start that is tested; others have time
constexpr std::chrono::milliseconds kStepTime{20};
constexpr std::chrono::hours kForEver{1};

void say(const std::string& line) {
  fmt::print("{}\n", line);
  (void)std::fflush(stdout);
}

// Before MPI knows.
std::string launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    if (const char* rank = std::getenv(name); rank != nullptr) {
      return rank;
    }
  }
  throw std::runtime_error("no launcher has started this process");
}

class Probe {
 public:
  Probe(MpiSession& session, std::string argument)
      : session_(&session), argument_(std::move(argument)) {}

  // One rank fails while the others wait for it.
  int fail_alone(const std::function<void()>& fail) {
    run_to_step_7();
    if (session_->rank() == session_->world_size() - 1) {
      fail();
    }
    session_->control().barrier();
    return 0;
  }

  int throw_alone() {
    return fail_alone([] { throw FormatError("x.h5 is damaged", TESSERA_HERE); });
  }
  int run_out_of_memory() {
    return fail_alone([] { throw std::bad_alloc(); });
  }
  int throw_unknown() {
    return fail_alone([] { throw std::runtime_error("a library's words"); });
  }
  int throw_no_exception() {
    return fail_alone([] { throw 42; });  // NOLINT(hicpp-exception-baseclass)
  }

  int throw_everywhere() {
    run_to_step_7();
    std::this_thread::sleep_for(kStepTime * session_->rank());
    throw DivergedError("4 steps were not finite", TESSERA_HERE);
  }

  // Every rank fails, each in its own way.
  int throw_unlike() {
    throw FormatError(fmt::format("file {} is damaged", session_->rank()), TESSERA_HERE);
  }

  int agree_everywhere() {
    agree(*session_, [] { throw ConfigError("--lr -1 must be above 0", TESSERA_HERE); });
    return 0;
  }

  int agree_alone() {
    agree(*session_, [this] {
      if (session_->rank() == 1) {
        throw WriteError("the disk is full", TESSERA_HERE);
      }
    });
    return 0;
  }

  // The guard of the start, which main has not ended, sees a rank that the others wait for.
  int start_slowly() {
    if (session_->rank() == 1) {
      std::this_thread::sleep_for(kForEver);
    }
    session_->control().barrier();
    return 0;
  }

  int return_status() { return std::stoi(argument_); }

  int compare_options() {
    const std::size_t equals = argument_.find('=');
    const std::vector<NamedValue> options = {
        {"model", "tiny"}, {argument_.substr(0, equals), argument_.substr(equals + 1)}};
    require_same_start(*session_, options);
    say("all alike");
    return 0;
  }

  // Steps of a run, until the argument's count; a rank that is killed or stopped is stopped here.
  int steps() { return step_under_watch(kTimeoutSeconds); }
  // The same, with a limit that a test does not reach.
  int steps_with_long_timeout() { return step_under_watch(kTimeoutSeconds * 100); }
  int step_under_watch(double timeout_seconds) {
    const Watchdog watchdog(*session_, timeout_seconds);
    const auto comm = make_communicator(*session_, Device{});
    Stream stream(Device{}, StreamPriority::normal, "steps");
    constexpr Index kSlice = 64;
    const Index all = kSlice * session_->world_size();
    std::vector<float> values(static_cast<std::size_t>(all), 1.0F);
    const TensorView view = {values.data(), DType::f32, Shape{all}, Device{}};
    const Index own = kSlice * session_->rank();
    const int count = std::stoi(argument_);
    for (int step = 1; step <= count; ++step) {
      progress().step = step;
      enter_phase("forward");
      std::this_thread::sleep_for(kStepTime);
      comm->all_gather(view.slice(own, own + kSlice), view, stream);
      if (step == 10 && session_->rank() == 0) {
        say("under way");
      }
    }
    say("finished");
    return 0;
  }

  // One rank stays where no heartbeat is missing: in a loop of its own.
  int stay_in_a_phase() {
    const Watchdog watchdog(*session_, kTimeoutSeconds);
    run_to_step_7();
    if (session_->rank() == 1) {
      enter_phase("stuck");
      std::this_thread::sleep_for(kForEver);
    }
    session_->control().barrier();
    return 0;
  }

  // Slower than the limit as a whole, but moving.
  int take_long_by_design() {
    const Watchdog watchdog(*session_, kTimeoutSeconds);
    for (int i = 0; i < 5; ++i) {
      enter_phase("loading");
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    return 0;
  }

  int lose_a_peer() {
    Watchdog watchdog(*session_, kTimeoutSeconds * 100);
    const auto attachment =
        watchdog.watch({.check_health = [] { throw CommError("a peer is gone", TESSERA_HERE); },
                        .abort = [] { say("aborted"); }});
    std::this_thread::sleep_for(kForEver);
    return 0;
  }

  int block_in_abort() {
    Watchdog watchdog(*session_, kTimeoutSeconds);
    const auto attachment = watchdog.watch(
        {.check_health = [] {}, .abort = [] { std::this_thread::sleep_for(kForEver); }});
    std::this_thread::sleep_for(kForEver);
    return 0;
  }

  // As under NCCL: the step's thread waits for the device until the abort makes the wait return,
  // and then finds an error, or takes what is there for the result.
  int woken_to_fail() {
    return wake_by_abort([] { throw CommError("a call was aborted", TESSERA_HERE); });
  }
  int woken_to_go_on() {
    return wake_by_abort([] {
      Stream stream(Device{}, StreamPriority::normal, "garbage");
      stream.synchronize();
    });
  }
  int wake_by_abort(const std::function<void()>& woken) {
    Watchdog watchdog(*session_, kTimeoutSeconds);
    std::atomic<bool> aborted{false};
    const auto attachment = watchdog.watch({.check_health = [] {},
                                            .abort =
                                                [&aborted] {
                                                  aborted = true;
                                                  std::this_thread::sleep_for(kStepTime * 10);
                                                }});
    while (!aborted) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    woken();
    say("continued with garbage");
    return 0;
  }

  // Runs until some rank is asked to stop; the argument is the stop file.
  int stop_on_request() {
    StopRequests requests({.stop_file = argument_, .max_seconds = 0}, session_->rank());
    const auto comm = make_communicator(*session_, Device{});
    StepExchange exchange(*comm);
    for (int step = 1;; ++step) {
      exchange.clear();
      if (const auto reason = requests.poll()) {
        exchange.vote_stop(*reason);
      }
      exchange.run();
      if (const auto reason = exchange.stop_reason()) {
        say(fmt::format("rank {} stops after step {}: {}", session_->rank(), step,
                        stop_reason_text(*reason)));
        return kSaved;
      }
      if (step == 1 && session_->rank() == 0) {
        say("under way");
      }
      std::this_thread::sleep_for(kStepTime);
    }
  }

 private:
  void run_to_step_7() {
    for (int step = 1; step <= 7; ++step) {
      progress().step = step;
      enter_phase("forward");
      session_->control().barrier();
    }
    enter_phase("backward");
  }

  MpiSession* session_;
  std::string argument_;
};

int run(MpiSession& session, const std::string& mode, const std::string& argument) {
  say(fmt::format("pid {} {}", session.rank(), getpid()));
  session.control().barrier();
  Probe probe(session, argument);
  const std::map<std::string, int (Probe::*)()> modes = {
      {"throw-alone", &Probe::throw_alone},
      {"out-of-memory", &Probe::run_out_of_memory},
      {"throw-unknown", &Probe::throw_unknown},
      {"throw-no-exception", &Probe::throw_no_exception},
      {"throw-everywhere", &Probe::throw_everywhere},
      {"throw-unlike", &Probe::throw_unlike},
      {"agree-everywhere", &Probe::agree_everywhere},
      {"agree-alone", &Probe::agree_alone},
      {"return", &Probe::return_status},
      {"start-slowly", &Probe::start_slowly},
      {"stop-before-mpi", &Probe::return_status},
      {"options", &Probe::compare_options},
      {"steps", &Probe::steps},
      {"patient-steps", &Probe::steps_with_long_timeout},
      {"stay", &Probe::stay_in_a_phase},
      {"slow", &Probe::take_long_by_design},
      {"lose-peer", &Probe::lose_a_peer},
      {"block-in-abort", &Probe::block_in_abort},
      {"woken-to-fail", &Probe::woken_to_fail},
      {"woken-to-go-on", &Probe::woken_to_go_on},
      {"stop", &Probe::stop_on_request},
  };
  const auto found = modes.find(mode);
  if (found == modes.end()) {
    throw ConfigError(fmt::format("rank_probe knows no mode '{}'", mode), TESSERA_HERE);
  }
  return (probe.*found->second)();
}

}  // namespace
}  // namespace tessera

// NOLINTNEXTLINE(bugprone-exception-escape): what escapes ends the rank, and the test sees it
int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const std::string argument = argc > 2 ? argv[2] : "";
  std::optional<tessera::StopSignals> signals;
  if (mode == "steps" || mode == "patient-steps" || mode == "stop") {
    signals.emplace();  // as in train: TERM, which mpirun sends first, does not end a rank
  }
  if (mode == "stop-before-mpi") {
    const std::string rank = tessera::launched_rank();
    tessera::say(fmt::format("pid {} {}", rank, getpid()));
    if (argument == rank) {
      (void)std::raise(SIGSTOP);
    }
  }
  const auto body = [&](tessera::MpiSession& session, tessera::StartGuard& start) {
    if (mode != "start-slowly") {
      start.end();
    }
    return tessera::run(session, mode, argument);
  };
  const bool start_is_tested = mode == "start-slowly" || mode == "stop-before-mpi";
  const double start_seconds = tessera::kStartSeconds * (start_is_tested ? 1 : 10);
  return tessera::run_job(argc, argv, start_seconds, body);
}
