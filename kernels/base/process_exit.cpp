#include "kernels/base/process_exit.h"

#include <condition_variable>
#include <cstdio>
#include <exception>
#include <mutex>
#include <thread>

#include <unistd.h>

#include "kernels/base/progress.h"

namespace tessera {
namespace {

[[noreturn]] void stay() noexcept {
  for (;;) {
    pause();
  }
}

}  // namespace

void end_process(int exit_status, std::chrono::milliseconds timeout,
                 const std::function<void()>& on_exit) noexcept {
  if (progress().ending.exchange(true)) {
    stay();
  }
  std::mutex mutex;
  std::condition_variable wake;
  bool done = false;
  std::unique_lock lock(mutex);
  try {
    std::thread([&] {
      on_exit();
      const std::lock_guard guard(mutex);
      done = true;
      wake.notify_all();
    }).detach();
    wake.wait_for(lock, timeout, [&] { return done; });
  } catch (const std::exception&) {
    (void)std::fputs("no thread for the last report\n", stderr);
  }
  _exit(exit_status);
}

void stay_if_ending() noexcept {
  if (progress().ending.load(std::memory_order_acquire)) {
    stay();
  }
}

}  // namespace tessera
