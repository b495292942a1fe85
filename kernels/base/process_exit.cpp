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

[[noreturn]] void park() noexcept {
  for (;;) {
    pause();
  }
}

}  // namespace

void exit_process(int exit_status, std::chrono::milliseconds timeout,
                  const std::function<void()>& on_exit) noexcept {
  if (progress().exiting.exchange(true)) {
    park();
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

void park_if_exiting() noexcept {
  if (progress().exiting.load(std::memory_order_acquire)) {
    park();
  }
}

}  // namespace tessera
