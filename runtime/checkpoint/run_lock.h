// One run at a time in an output folder: two would remove each other's saves in progress, and write
// over each other's metrics.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "kernels/base/file.h"

namespace tessera {

/// Holds an advisory lock on FOLDER/.lock, in whose first line it leaves who holds it. The system
/// gives the lock back when the process ends, however it ends; the file stays, but for one that was
/// made here and that the destructor finds before `keep`: a start that is refused leaves nothing.
class RunLock {
 public:
  RunLock() noexcept = default;  // holds nothing
  /// Waits up to `timeout` for a holder, which may be a run that is in its process exit. Throws
  /// WriteError with the `name` of the holder where it stays: unlike bad options that status has a
  /// restart tried again, as after a node that died with the lock. Holds nothing, and says so in a
  /// warning, where the file system has no locks.
  RunLock(const std::filesystem::path& folder, const std::string& name,
          std::chrono::milliseconds timeout);
  ~RunLock() { remove_new_file(); }
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&& other) noexcept;
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// The run has started: the file stays.
  void keep() noexcept { is_new_ = false; }
  [[nodiscard]] bool holds() const noexcept { return file_.is_open(); }

 private:
  void remove_new_file() noexcept;
  File file_;
  bool is_new_ = false;  // the file goes with this object
};

}  // namespace tessera
