// MPI's life within the process.
#pragma once

#include <string>

namespace tessera {

/// Initialises MPI (thread level SERIALIZED) and finalises it. One object a process, made first in
/// main and destroyed last, so that every communicator goes before MPI does.
class MpiSession {
 public:
  /// Errors become return codes, which the checks turn into CommError.
  MpiSession(int& argc, char**& argv);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int world_size() const noexcept { return world_size_; }
  /// Rank among those of this host: the CUDA device this process takes.
  [[nodiscard]] int local_rank() const noexcept { return local_rank_; }
  [[nodiscard]] const std::string& host() const noexcept { return host_; }
  /// Ends every rank with `exit_status`. For run_job alone, which also hands it to the watchdog.
  [[noreturn]] static void abort(int exit_status) noexcept;

 private:
  int rank_ = 0;
  int world_size_ = 1;
  int local_rank_ = 0;
  std::string host_;
};

}  // namespace tessera
