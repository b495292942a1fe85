// What this process is doing right now, for the watchdog's report and the failure message: a step,
// a phase and the collective it is in. Written by the step, read by another thread; nothing blocks.
#pragma once

#include <atomic>
#include <cstdint>

namespace tessera {

struct ProgressRecord {
  std::atomic<std::int64_t> step{0};
  std::atomic<const char*> phase{"start"};         // a literal
  std::atomic<const char*> collective{nullptr};    // a literal; null outside
  std::atomic<std::int64_t> collective_number{0};  // collectives begun by this process
  std::atomic<std::int64_t> collective_bytes{0};
  std::atomic<std::uint64_t> beats{0};  // grows with every sign of progress
  std::atomic<bool> exiting{false};     // a hang is being reported: kernels/base/process_exit.h
};

/// The process's one record.
[[nodiscard]] ProgressRecord& progress() noexcept;

/// Names the phase and counts as progress. `name` is a literal.
inline void enter_phase(const char* name) noexcept {
  progress().phase.store(name, std::memory_order_relaxed);
  progress().beats.fetch_add(1, std::memory_order_relaxed);
}

/// For the time of one collective.
class CollectiveMark {
 public:
  CollectiveMark(const char* name, std::int64_t bytes) noexcept {
    ProgressRecord& record = progress();
    record.collective_bytes.store(bytes, std::memory_order_relaxed);
    record.collective_number.fetch_add(1, std::memory_order_relaxed);
    record.collective.store(name, std::memory_order_relaxed);
  }
  ~CollectiveMark() {
    progress().collective.store(nullptr, std::memory_order_relaxed);
    progress().beats.fetch_add(1, std::memory_order_relaxed);
  }
  CollectiveMark(const CollectiveMark&) = delete;
  CollectiveMark& operator=(const CollectiveMark&) = delete;
};

}  // namespace tessera
