#define BOOST_TEST_MODULE signals
#include "runtime/launch/signals.h"

#include <chrono>
#include <fstream>
#include <thread>

#include <boost/test/unit_test.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "tests/support/check.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_bench.h"

namespace tessera::test {
namespace {

constexpr auto kMoreThanALook = std::chrono::milliseconds(1100);

// To the process, as mpirun and Slurm send it: raise() would send it to this thread.
void send(int number) {
  BOOST_REQUIRE(kill(getpid(), number) == 0);
}

// The next signal is on its way to a thread of its own.
std::optional<StopReason> received_soon() {
  for (int i = 0; i < 10000 && !StopSignals::received(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return StopSignals::received();
}

void send_and_wait(int number) {
  send(number);
  (void)received_soon();
}

// Signal that ended a child that runs `work`; 0 where it ended by itself.
template <typename Work>
int ending_signal(Work work) {
  const pid_t child = fork();
  BOOST_REQUIRE(child >= 0);
  if (child == 0) {
    work();
    _exit(0);
  }
  int status = 0;
  BOOST_REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(signals)

BOOST_AUTO_TEST_CASE(each_signal_is_noted_instead_of_ending_the_process) {
  for (const auto& [number, reason] : {std::pair{SIGUSR1, StopReason::usr1},
                                       {SIGUSR2, StopReason::usr2},
                                       {SIGTERM, StopReason::terminate},
                                       {SIGHUP, StopReason::hangup},
                                       {SIGXCPU, StopReason::cpu_limit},
                                       {SIGINT, StopReason::interrupt}}) {
    const StopSignals signals;
    BOOST_TEST(!StopSignals::received().has_value());
    send(number);
    BOOST_TEST((received_soon() == reason));
    StopRequests requests({}, 1);
    BOOST_TEST((requests.poll() == reason));
  }
}

BOOST_AUTO_TEST_CASE(a_second_interrupt_ends_at_once) {
  BOOST_TEST(ending_signal([] {
               const StopSignals signals;
               send_and_wait(SIGINT);
             }) == 0);
  BOOST_TEST(ending_signal([] {
               const StopSignals signals;
               send_and_wait(SIGINT);
               send(SIGINT);
               std::this_thread::sleep_for(std::chrono::seconds(10));
             }) == SIGINT);
  BOOST_TEST(ending_signal([] {
               const StopSignals signals;
               send_and_wait(SIGTERM);
               send(SIGTERM);
               std::this_thread::sleep_for(std::chrono::milliseconds(20));
             }) == 0);
}

BOOST_AUTO_TEST_CASE(a_hangup_that_was_ignored_stays_ignored) {
  BOOST_TEST(ending_signal([] {
               (void)std::signal(SIGHUP, SIG_IGN);
               const StopSignals signals;
               send(SIGHUP);
               send_and_wait(SIGUSR1);
               _exit(StopSignals::received() == StopReason::usr1 ? 0 : (raise(SIGKILL), 1));
             }) == 0);
}

BOOST_AUTO_TEST_CASE(former_actions_come_back) {
  BOOST_TEST(ending_signal([] {
               { const StopSignals signals; }
               (void)raise(SIGUSR1);
             }) == SIGUSR1);
}

// A handler's frame on the stack of a thread inside dnnl_sgemm damaged its memory: a rank that was
// asked to save ended in "corrupted size vs. prev_size". The signals come from another process,
// because those that a process sends itself are taken by the thread that sends them.
BOOST_AUTO_TEST_CASE(signals_do_not_touch_a_thread_that_computes) {
  constexpr Index kM = 64;  // the shape that was hit most
  constexpr Index kN = 128;
  constexpr Index kK = 768;
  constexpr int kProducts = 1500;
  TestBench bench(Device{DeviceKind::cpu, 0});
  const StopSignals signals;
  TestTensor a = bench.normal(DType::f32, {kM, kK});
  TestTensor b = bench.normal(DType::f32, {kK, kN});
  TestTensor expected = bench.poisoned(DType::f32, {kM, kN});
  TestTensor product = bench.poisoned(DType::f32, {kM, kN});
  const auto multiply = [&](TestTensor& into) {
    bench.kernels().gemm({.m = kM,
                          .n = kN,
                          .k = kK,
                          .transpose_a = Transpose::no,
                          .transpose_b = Transpose::no,
                          .a = a.view(),
                          .lda = kK,
                          .b = b.view(),
                          .ldb = kN,
                          .beta = 0,
                          .c = {},
                          .bias = {},
                          .d = into.view(),
                          .ldd = kN,
                          .workspace = {}},
                         bench.stream());
  };
  multiply(expected);
  const pid_t computing = getpid();
  const pid_t sender = fork();
  BOOST_REQUIRE(sender >= 0);
  if (sender == 0) {
    while (kill(computing, SIGUSR1) == 0 && getppid() == computing) {
      usleep(20);
    }
    _exit(0);
  }
  for (int i = 0; i < kProducts; ++i) {
    multiply(product);
  }
  BOOST_TEST(kill(sender, SIGKILL) == 0);
  BOOST_TEST(waitpid(sender, nullptr, 0) == sender);
  check_equal(bench.read(product.view()), bench.read(expected.view()), "product");
  BOOST_TEST((received_soon() == StopReason::usr1));
}

BOOST_AUTO_TEST_CASE(only_one_at_a_time) {
  const StopSignals signals;
  BOOST_CHECK_THROW(StopSignals(), ContractError);
}

BOOST_AUTO_TEST_CASE(an_empty_stop_file_is_obeyed_and_taken_away) {
  const TempFolder folder;
  const auto path = folder / "stop here, 100% {}";
  StopRequests requests({.stop_file = path, .max_seconds = 0}, 0);
  BOOST_TEST(!requests.poll().has_value());
  { const std::ofstream touch(path); }
  BOOST_TEST(!requests.poll().has_value());  // looks once a second
  std::this_thread::sleep_for(kMoreThanALook);
  BOOST_TEST((requests.poll() == StopReason::stop_file));
  BOOST_TEST(!std::filesystem::exists(path));
  BOOST_TEST((requests.poll() == StopReason::stop_file));  // and stays so
}

BOOST_AUTO_TEST_CASE(a_stop_file_with_content_is_obeyed_and_kept) {
  const TempFolder folder;
  const auto path = folder / "notes";
  StopRequests requests({.stop_file = path, .max_seconds = 0}, 0);
  { std::ofstream(path) << "mine"; }
  BOOST_TEST((requests.poll() == StopReason::stop_file));
  BOOST_TEST(std::filesystem::exists(path));
}

BOOST_AUTO_TEST_CASE(a_stop_file_of_an_earlier_run_counts_once_it_is_touched) {
  const TempFolder folder;
  const auto path = folder / "stop";
  { const std::ofstream touch(path); }
  StopRequests requests({.stop_file = path, .max_seconds = 0}, 0);
  BOOST_TEST(!requests.poll().has_value());
  BOOST_TEST(std::filesystem::exists(path));
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now());
  std::this_thread::sleep_for(kMoreThanALook);
  BOOST_TEST((requests.poll() == StopReason::stop_file));
}

BOOST_AUTO_TEST_CASE(other_ranks_leave_the_stop_file_to_rank_0) {
  const TempFolder folder;
  const auto path = folder / "stop";
  { const std::ofstream touch(path); }
  StopRequests requests({.stop_file = path, .max_seconds = 0}, 1);
  BOOST_TEST(!requests.poll().has_value());
  BOOST_TEST(std::filesystem::exists(path));
}

BOOST_AUTO_TEST_CASE(a_limit_leaves_time_for_a_save) {
  StopRequests requests({.stop_file = {}, .max_seconds = 3600}, 0);
  BOOST_TEST(!requests.poll().has_value());
  requests.expect_save_seconds(3600 / 1.25);
  BOOST_TEST((requests.poll() == StopReason::time_limit));
  requests.measured_save_seconds(1);
  BOOST_TEST(!requests.poll().has_value());
  StopRequests job({.stop_file = {}, .max_seconds = 0, .job_seconds = 3600}, 0);
  BOOST_TEST(!job.poll().has_value());
  job.measured_save_seconds((3600 - 20) / 1.25);  // 20 s are the batch system's
  BOOST_TEST((job.poll() == StopReason::job_end));
  BOOST_CHECK_THROW(StopRequests({.stop_file = {}, .max_seconds = -1}, 0), ConfigError);
}

BOOST_AUTO_TEST_CASE(a_limit_leaves_time_for_a_round_as_long_as_the_longest) {
  StopRequests requests({.stop_file = {}, .max_seconds = 1.2}, 0);
  BOOST_TEST(!requests.poll().has_value());
  std::this_thread::sleep_for(std::chrono::milliseconds(110));
  BOOST_TEST((requests.poll() == StopReason::time_limit));
}

BOOST_AUTO_TEST_CASE(a_tenth_of_a_limit_without_a_save_asks_for_one) {
  StopRequests unlimited({}, 0);
  BOOST_TEST(!unlimited.wants_trial_save());
  StopRequests requests({.stop_file = {}, .max_seconds = 0, .job_seconds = 0.04}, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  BOOST_TEST(requests.wants_trial_save());
  requests.measured_save_seconds(0.001);
  BOOST_TEST(!requests.wants_trial_save());
  StopRequests early({.stop_file = {}, .max_seconds = 3600}, 0);
  BOOST_TEST(!early.wants_trial_save());
}

BOOST_AUTO_TEST_CASE(the_end_of_the_job_is_read_from_the_environment) {
  const auto left = [](const std::string& text) {
    BOOST_REQUIRE(setenv("SLURM_JOB_END_TIME", text.c_str(), 1) == 0);
    return seconds_to_job_end();
  };
  BOOST_TEST(left(std::to_string(std::time(nullptr) + 1000)) > 990);
  BOOST_TEST(left(std::to_string(std::time(nullptr) + 1000)) <= 1000);
  for (const char* useless : {"", "soon", "12 h", "1"}) {
    BOOST_TEST(left(useless) == 0);
  }
  BOOST_REQUIRE(unsetenv("SLURM_JOB_END_TIME") == 0);
  BOOST_TEST(seconds_to_job_end() == 0);
}

BOOST_AUTO_TEST_CASE(every_reason_has_a_text) {
  for (std::size_t reason = 0; reason < kStopReasons; ++reason) {
    BOOST_TEST(std::string(stop_reason_text(static_cast<StopReason>(reason))) !=
               "an unknown reason");
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
