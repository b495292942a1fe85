// Work in pieces that do not depend on each other, on threads of this process: what keeps a disk
// and several cores busy at once.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/device/stream.h"

namespace tessera {

/// Calls `work(0)`, ..., `work(count - 1)`, each once, roughly in this order, from several threads.
/// Throws the first exception of a call; no call begins after it.
template <typename Work>
void for_each_in_parallel(Index count, const Work& work) {
  // Some threads wait for the disk while others compute.
  constexpr unsigned kFewestThreads = 4;
  constexpr unsigned kMostThreads = 16;
  const auto threads = std::min(
      count, Index{std::clamp(std::thread::hardware_concurrency(), kFewestThreads, kMostThreads)});
  std::atomic<Index> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto run = [&] {
    try {
      for (Index i = next++; i < count; i = next++) {
        work(i);
      }
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      failure = failure ? failure : std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (Index i = 1; i < threads; ++i) {
      helpers.emplace_back(run);
    }
    run();
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

}  // namespace tessera
