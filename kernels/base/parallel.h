// Work in pieces that do not depend on each other, on threads of this process: what keeps a disk
// and several cores busy at once.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/base/types.h"
#include "kernels/base/vector_registers.h"

namespace tessera {

/// Gives each of `threads` threads a worker of its own, `make_worker()`, and calls worker(0), ...,
/// worker(count - 1), each once, roughly in this order, from all of them. Throws the first
/// exception; no call begins after it.
template <typename MakeWorker>
void share_among_threads(Index count, Index threads, const MakeWorker& make_worker) {
  std::atomic<Index> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto run = [&] {
    try {
      auto worker = make_worker();
      for (Index i = next++; i < count; i = next++) {
        clear_upper_vector_registers();  // of the thread that started this one, or of a last call
        worker(i);
      }
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      failure = failure ? failure : std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (Index i = 1; i < std::min(count, threads); ++i) {
      helpers.emplace_back(run);
    }
    run();
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

/// The same with one `work` for all, on as many threads as suit work that reads or writes files.
template <typename Work>
void for_each_in_parallel(Index count, const Work& work) {
  // Some threads wait for the disk while others compute.
  constexpr unsigned kFewest = 4;
  constexpr unsigned kMost = 16;
  const Index threads = std::clamp(std::thread::hardware_concurrency(), kFewest, kMost);
  share_among_threads(count, threads, [&work] { return [&work](Index i) { work(i); }; });
}

}  // namespace tessera
