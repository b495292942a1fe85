// A write that fails shall be an error with a sentence that says what to do.
#pragma once

#include <cerrno>
#include <csignal>
#include <string>
#include <system_error>

namespace tessera {

/// From here on a write beyond the file size limit (ulimit -f) fails with EFBIG in this process and
/// in those it starts, where SIGXFSZ would end them. The frames of all programs (run_job,
/// run_program) begin with it.
inline void ignore_file_size_signal() noexcept {
  static_cast<void>(std::signal(SIGXFSZ, SIG_IGN));
}

/// What an errno of a failed write means.
[[nodiscard]] inline std::string write_failure(int code) {
  switch (code) {
    case ENOSPC:
      return "no space left on the device";
    case EDQUOT:
      return "no space left in the quota";
    case EFBIG:
      return "the file size limit (ulimit -f, or the file system's) is reached";
    default:
      return std::generic_category().message(code);
  }
}

}  // namespace tessera
