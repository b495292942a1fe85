// The exceptions this project throws, and the contract check.
//
// A function that cannot do its work throws; it never prints, never exits and never returns a
// code. runtime/launch/run_job.h is the only place that turns an exception into output, an exit
// status and, with more than one rank, MPI_Abort. The checks for CUDA, MPI, NCCL and HDF5 calls
// stand beside the code that makes those calls, so that this header needs no vendor header.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace tessera {

/// A place in this project's source. Not std::source_location: clang-tidy 14 cannot parse it.
struct SourceLocation {
  const char* file;
  int line;
};

/// Base of every exception of this project. `what()` reads "file:line: message".
class Error : public std::runtime_error {
 public:
  Error(std::string_view message, SourceLocation where);
  /// The message without the place in the source: what a user is shown.
  [[nodiscard]] const std::string& message() const noexcept { return message_; }
  /// Process exit status that run_job gives for this kind of error.
  [[nodiscard]] virtual int exit_status() const noexcept { return 9; }

 private:
  std::string message_;
};

/// The user's options, or two inputs taken together, make no run. Exit status 2.
class ConfigError : public Error {
 public:
  using Error::Error;
  [[nodiscard]] int exit_status() const noexcept override { return 2; }
};

/// A file was read and is not what it should be: magic, version, checksum, shape. Exit status 3.
class FormatError : public Error {
 public:
  using Error::Error;
  [[nodiscard]] int exit_status() const noexcept override { return 3; }
};

/// A file or folder cannot be written. Exit status 4.
class WriteError : public Error {
 public:
  using Error::Error;
  [[nodiscard]] int exit_status() const noexcept override { return 4; }
};

/// A CUDA, cuBLAS or cuDNN call failed. The device is not usable after it. Exit status 5.
class DeviceError : public Error {
 public:
  using Error::Error;
  [[nodiscard]] int exit_status() const noexcept override { return 5; }
};

/// An MPI or NCCL call failed, or a peer stopped. The communicator is not usable after it. Exit
/// status 6.
class CommError : public Error {
 public:
  using Error::Error;
  [[nodiscard]] int exit_status() const noexcept override { return 6; }
};

/// The loss or the gradient norm was not finite more often than the user allows. Exit status 7.
class DivergedError : public Error {
 public:
  using Error::Error;
  [[nodiscard]] int exit_status() const noexcept override { return 7; }
};

/// A caller broke a documented requirement: a bug in this project, not in the input. Exit status 9.
class ContractError : public Error {
 public:
  using Error::Error;
};

}  // namespace tessera

#define TESSERA_HERE (::tessera::SourceLocation{__FILE__, __LINE__})

/// Checks a documented requirement, in every build type. Throws ContractError.
#define TESSERA_REQUIRE(condition, message)                                                   \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      throw ::tessera::ContractError(std::string(#condition ": ") + (message), TESSERA_HERE); \
    }                                                                                         \
  } while (false)
