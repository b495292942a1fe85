#include "runtime/checkpoint/run_lock.h"

#include <span>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/log.h"

namespace tessera {
namespace {

constexpr std::chrono::milliseconds kRetryInterval{100};
constexpr std::size_t kLongestName = 4096;

bool lock_within(File& file, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!file.try_lock()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::sleep_for(kRetryInterval);
  }
  return true;
}

std::string holder(const std::filesystem::path& file) {
  try {
    const std::string text = read_whole_file(file, kLongestName);
    return text.empty() ? "another process" : text.substr(0, text.find('\n'));
  } catch (const FormatError&) {
    return "another process";
  }
}

void leave_name(File& file, const std::string& name) {
  const std::string line = name + '\n';
  try {
    file.write_at(0, std::as_bytes(std::span(line)));
  } catch (const WriteError& error) {
    log_line(LogLevel::verbose,
             fmt::format("the lock does not say who has it: {}", error.message()));
  }
}

}  // namespace

RunLock::RunLock(const std::filesystem::path& folder, const std::string& name,
                 std::chrono::milliseconds timeout) {
  const std::filesystem::path path = folder / ".lock";
  file_ = File::open_or_create(path);
  bool taken = false;
  try {
    taken = lock_within(file_, timeout);
  } catch (const WriteError& error) {
    file_ = {};
    log_line(LogLevel::warning,
             fmt::format("{}: nothing keeps a second run out of this folder", error.message()));
    return;
  }
  if (!taken) {
    throw WriteError(fmt::format("another run writes to {} ({}): wait for its end, or give another "
                                 "--out",
                                 folder.string(), holder(path)),
                     TESSERA_HERE);
  }
  leave_name(file_, name);
}

}  // namespace tessera
