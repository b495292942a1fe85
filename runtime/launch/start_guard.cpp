#include "runtime/launch/start_guard.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <unistd.h>

#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/base/log.h"
#include "kernels/base/process_exit.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTick{200};
// A tick that took longer than this was a suspended process: only this much of it counts.
constexpr std::chrono::seconds kLongestTick{1};
// For the report, and for the guards of other ranks, whose limits pass at about the same time, to
// make theirs before the launcher ends them.
constexpr std::chrono::milliseconds kLastWords{1000};
constexpr std::chrono::seconds kExitTimeout{3};
constexpr int kHangStatus = 8;

// As the launcher nearest to this process numbers it; "a rank" where none says.
std::string launchers_rank() {
  constexpr std::array<const char*, 4> kNames = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                                 "SLURM_PROCID"};
  for (const char* name : kNames) {
    if (const char* rank = std::getenv(name); rank != nullptr) {
      return std::string("rank ") + rank;
    }
  }
  return "a rank";
}

}  // namespace

StartGuard::StartGuard(double limit_seconds) : limit_seconds_(limit_seconds) {
  TESSERA_REQUIRE(limit_seconds > 0, "a start may take some time");
  thread_ = std::thread([this] { loop(); });
}

StartGuard::~StartGuard() {
  end();
  thread_.join();
}

void StartGuard::end() noexcept {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  wake_.notify_all();
}

void StartGuard::loop() {
  Clock::time_point last = Clock::now();
  Clock::duration waited{0};
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kTick, [this] { return ended_; })) {
    const Clock::time_point now = Clock::now();
    waited += std::min<Clock::duration>(now - last, kLongestTick);
    last = now;
    const double seconds = std::chrono::duration<double>(waited).count();
    if (seconds >= limit_seconds_) {
      exit_process(kHangStatus, kExitTimeout, [&] {
        log_line(
            LogLevel::error,
            fmt::format("hang: {} ({}, pid {}) has not started after {:.1f} s "
                        "(limit {:g}, see --timeout-seconds): it waits for another rank, which is "
                        "stopped or stuck in MPI_Init or has never begun; all ranks end with "
                        "exit status {}",
                        launchers_rank(), host_name(), getpid(), seconds, limit_seconds_,
                        kHangStatus));
        std::this_thread::sleep_for(kLastWords);
      });
    }
  }
}

}  // namespace tessera
