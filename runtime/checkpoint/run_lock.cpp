#include "runtime/checkpoint/run_lock.h"

#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <sys/stat.h>

#include "kernels/base/error.h"
#include "kernels/base/log.h"

namespace tessera {
namespace {

constexpr std::chrono::milliseconds kRetryInterval{100};
constexpr std::size_t kLongestName = 4096;

// False where a holder has removed the file since it was opened.
bool has_its_name(const File& file) {
  struct stat opened = {};
  struct stat named = {};
  if (::stat(file.own_name().c_str(), &opened) != 0) {
    return true;  // no /proc: taken on trust
  }
  return ::stat(file.path().c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

// The file anew, in its folder, which a start that was refused may have removed with it.
File opened_again(const std::filesystem::path& path) {
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);
  try {
    return File::open_or_create(path);
  } catch (const WriteError& error) {  // not for want of locks
    throw ConfigError(fmt::format("{} went away while this run waited for it: {}; start again",
                                  path.parent_path().string(), error.message()),
                      TESSERA_HERE);
  }
}

bool lock_within(File& file, std::chrono::milliseconds timeout) {
  constexpr int kMostRemovals = 100;  // beyond it is the file system that gives other numbers
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (int removals = 0;;) {
    if (file.try_lock()) {
      if (removals == kMostRemovals || has_its_name(file)) {
        return true;
      }
      const std::filesystem::path path = file.path();
      file = opened_again(path);
      ++removals;
      continue;
    }
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::sleep_for(kRetryInterval);
  }
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
  std::error_code ignored;
  const bool was_there = std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
  file_ = File::open_or_create(path);
  bool taken = false;
  try {
    taken = lock_within(file_, timeout);
  } catch (const WriteError& error) {
    if (!was_there) {
      std::filesystem::remove(path, ignored);
    }
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
  is_new_ = !was_there;
  leave_name(file_, name);
}

RunLock::RunLock(RunLock&& other) noexcept
    : file_(std::move(other.file_)), is_new_(std::exchange(other.is_new_, false)) {}

RunLock& RunLock::operator=(RunLock&& other) noexcept {
  if (this != &other) {
    remove_new_file();
    file_ = std::move(other.file_);
    is_new_ = std::exchange(other.is_new_, false);
  }
  return *this;
}

// While it is locked: who waits for it finds that its name is gone.
void RunLock::remove_new_file() noexcept {
  if (std::exchange(is_new_, false)) {
    std::error_code ignored;
    std::filesystem::remove(file_.path(), ignored);
  }
}

}  // namespace tessera
