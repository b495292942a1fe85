// One run at a time in an output folder: two would remove each other's saves in progress, and write
// over each other's metrics.
#pragma once

#include <chrono>
#include <filesystem>

namespace tessera {

/// Holds an advisory lock (flock) on FOLDER/.lock, in which it leaves who holds it. The system
/// gives the lock back when the process ends, however it ends; the file stays.
class RunLock {
 public:
  RunLock() noexcept = default;  // holds nothing
  /// Waits up to `patience` for a holder, which may be a run that is just ending. Throws
  /// WriteError naming it where it stays: unlike bad options that status has a restart tried again,
  /// as after a node that died with the lock. Holds nothing, and says so in a warning, where the
  /// file system has no locks.
  RunLock(const std::filesystem::path& folder, std::chrono::milliseconds patience);
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&& other) noexcept;
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  [[nodiscard]] bool holds() const noexcept { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

}  // namespace tessera
