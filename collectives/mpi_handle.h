// Owner of one MPI communicator.
#pragma once

#include <exception>
#include <utility>

#include <mpi.h>

#include "collectives/comm_check.h"

namespace tessera {

/// A duplicate of another communicator, so that its messages meet no others. Move-only. Its calls
/// return error codes.
class MpiHandle {
 public:
  MpiHandle() noexcept = default;
  /// Collective over `parent`. Throws CommError.
  explicit MpiHandle(MPI_Comm parent) { TESSERA_CHECK_MPI(MPI_Comm_dup(parent, &comm_)); }
  ~MpiHandle() { release(); }
  MpiHandle(MpiHandle&& other) noexcept : comm_(std::exchange(other.comm_, MPI_COMM_NULL)) {}
  MpiHandle& operator=(MpiHandle&& other) noexcept {
    if (this != &other) {
      release();
      comm_ = std::exchange(other.comm_, MPI_COMM_NULL);
    }
    return *this;
  }
  MpiHandle(const MpiHandle&) = delete;
  MpiHandle& operator=(const MpiHandle&) = delete;

  [[nodiscard]] MPI_Comm get() const noexcept { return comm_; }

 private:
  // The standard calls MPI_Comm_free collective: where an exception unwinds this rank alone, its
  // peers may never come. The process ends then, and the handle with it.
  void release() noexcept {
    if (comm_ != MPI_COMM_NULL && std::uncaught_exceptions() == 0) {
      const int code = MPI_Comm_free(&comm_);
      if (code != MPI_SUCCESS) {
        log_mpi_error(code, "MPI_Comm_free");
      }
    }
    comm_ = MPI_COMM_NULL;
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace tessera
