#include "kernels/base/standard_streams.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <optional>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "kernels/base/write_failure.h"

namespace tessera {
namespace {

// Why stdout loses what is written to it. The stream has forgotten it, so one more character is
// tried: where something is lost already it does no harm.
int errno_of_standard_output() {
  std::clearerr(stdout);
  if (std::fputc('\n', stdout) == EOF || std::fflush(stdout) != 0) {
    return errno;
  }
  return 0;
}

// Flushes. Empty if nothing was lost so far; else why, 0 where that is not known.
std::optional<int> lost_output() {
  std::cout.flush();
  const bool is_lost = !std::cout || std::ferror(stdout) != 0;
  if (std::fflush(stdout) != 0) {
    return errno;
  }
  return is_lost ? std::optional(errno_of_standard_output()) : std::nullopt;
}

// Open MPI's mpirun passes on what its ranks write, and aborts the run when that fails some ten
// times because whoever read it has gone (`mpirun ... | head`). A look at
// the pipe that it writes to tells.
bool is_relayed_to_nobody(int descriptor) {
  if (std::getenv("OMPI_COMM_WORLD_RANK") == nullptr) {
    return false;
  }
  const std::string name = fmt::format("/proc/{}/fd/{}", ::getppid(), descriptor);
  struct stat status = {};
  if (::stat(name.c_str(), &status) != 0 || !S_ISFIFO(status.st_mode)) {
    return false;
  }
  const int opened = ::open(name.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (opened < 0) {
    return errno == ENXIO;  // a pipe with a name
  }
  pollfd pipe = {opened, POLLOUT, 0};
  const bool is_broken = ::poll(&pipe, 1, 0) == 1 && (pipe.revents & POLLERR) != 0;
  static_cast<void>(::close(opened));
  return is_broken;
}

}  // namespace

void prepare_standard_streams() noexcept {
  static_cast<void>(std::signal(SIGPIPE, SIG_IGN));
  // The lowest free number is taken, so they are filled in their order. Read-only, so that a write
  // fails as it would have.
  constexpr std::array<int, 3> kFlags = {O_WRONLY, O_RDONLY, O_RDONLY};
  for (int descriptor = 0; descriptor < static_cast<int>(kFlags.size()); ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) < 0 && errno == EBADF) {
      static_cast<void>(::open("/dev/null", kFlags[static_cast<std::size_t>(descriptor)]));
    }
  }
}

int write_to_stream(int descriptor, std::string_view text) noexcept {
  try {
    return is_relayed_to_nobody(descriptor) ? EPIPE : write_all(descriptor, text);
  } catch (const std::exception&) {
    return ENOMEM;
  }
}

int write_all(int descriptor, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t put = ::write(descriptor, text.data(), text.size());
    if (put >= 0) {
      text.remove_prefix(static_cast<std::size_t>(put));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      pollfd writable = {descriptor, POLLOUT, 0};
      static_cast<void>(::poll(&writable, 1, -1));
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

std::string output_failure(int code) {
  return code == EBADF ? "it is closed" : write_failure(code);
}

bool require_standard_output() {
  const std::optional<int> code = lost_output();
  if (code && *code != EPIPE) {
    throw WriteError(fmt::format("cannot write to standard output{}{}", *code == 0 ? "" : ": ",
                                 *code == 0 ? std::string() : output_failure(*code)),
                     TESSERA_HERE);
  }
  return code == EPIPE;
}

}  // namespace tessera
