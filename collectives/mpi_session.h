// MPI's life within the process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace tessera {

class MpiControl;

/// Initialises MPI (thread level SERIALIZED) and finalises it. One object a process, made first in
/// main and destroyed last, so that every communicator goes before MPI does.
class MpiSession {
 public:
  /// Errors become return codes, which the checks turn into CommError. Throws CommError.
  MpiSession(int& argc, char**& argv);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int world_size() const noexcept { return world_size_; }
  /// Rank among those of this host: the CUDA device this process takes.
  [[nodiscard]] int local_rank() const noexcept { return local_rank_; }
  [[nodiscard]] const std::string& host() const noexcept { return host_; }
  /// Control operations for set-up, before there is a Communicator. Collective.
  [[nodiscard]] MpiControl& control() noexcept { return *control_; }
  /// True if every rank comes here within `seconds` with the same `value`: then a failure that each
  /// met by itself can be reported once. False also where MPI fails. May be called once; after
  /// false the process must end through `abort`. For run_job alone.
  [[nodiscard]] bool all_arrive(std::uint64_t value, double seconds) noexcept;
  /// Ends every rank with `exit_status`, at once; ends this process even if MPI does not return.
  /// For run_job alone, from the thread that uses MPI.
  [[noreturn]] static void abort(int exit_status) noexcept;

 private:
  struct Meeting;

  int rank_ = 0;
  int world_size_ = 1;
  int local_rank_ = 0;
  std::string host_;
  std::unique_ptr<MpiControl> control_;
  std::unique_ptr<Meeting> meeting_;
};

/// The first line of what the MPI library says of itself: "Open MPI v4.1.4, package: ...".
[[nodiscard]] std::string mpi_library();

/// This machine's name, without MPI.
[[nodiscard]] std::string host_name();

/// Throws ConfigError where the launcher's environment says that this is one of several tasks while
/// MPI knows one rank only: launcher and MPI library do not belong together, and every process
/// would train by itself. `world_size` is MPI's.
void refuse_wrong_launcher(int world_size);

}  // namespace tessera
