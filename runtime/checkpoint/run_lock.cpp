#include "runtime/checkpoint/run_lock.h"

#include <array>
#include <cerrno>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "kernels/device/error.h"
#include "kernels/device/log.h"

namespace tessera {
namespace {

constexpr mode_t kNewFile = 0666;  // less what the umask takes away
constexpr std::chrono::milliseconds kRetryInterval{100};
constexpr std::size_t kLongestName = 256;  // of a host

std::string own_name() {
  std::array<char, kLongestName> host{};
  (void)::gethostname(host.data(), host.size() - 1);
  return fmt::format("process {} on {}", ::getpid(), host.data());
}

std::string holder(int descriptor) {
  std::array<char, 2 * kLongestName> text{};
  const ssize_t size = ::pread(descriptor, text.data(), text.size(), 0);
  return size > 0 ? std::string(text.data(), static_cast<std::size_t>(size)) : "another process";
}

void leave_name(int descriptor) {
  const std::string name = own_name();
  if (::ftruncate(descriptor, 0) != 0 ||
      ::pwrite(descriptor, name.data(), name.size(), 0) != static_cast<ssize_t>(name.size())) {
    log_line(LogLevel::verbose, "the lock of the output folder does not say who holds it");
  }
}

}  // namespace

RunLock::RunLock(const std::filesystem::path& folder, std::chrono::milliseconds patience) {
  const std::filesystem::path file = folder / ".lock";
  const auto without = [&](int reason) {
    log_line(LogLevel::warning,
             fmt::format("{} cannot be locked ({}): nothing keeps a second run out of this folder",
                         file.string(), std::generic_category().message(reason)));
  };
  const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kNewFile);
  if (descriptor < 0) {
    without(errno);
    return;
  }
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    if (reason != EWOULDBLOCK && reason != EINTR) {
      (void)::close(descriptor);
      without(reason);
      return;
    }
    if (std::chrono::steady_clock::now() > deadline) {
      const std::string other = holder(descriptor);
      (void)::close(descriptor);
      throw WriteError(fmt::format("another run writes to {} ({}): wait for its end, or give "
                                   "another --out",
                                   folder.string(), other),
                       TESSERA_HERE);
    }
    std::this_thread::sleep_for(kRetryInterval);
  }
  descriptor_ = descriptor;
  leave_name(descriptor_);
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) {
    (void)::close(descriptor_);
  }
}

RunLock::RunLock(RunLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

RunLock& RunLock::operator=(RunLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

}  // namespace tessera
