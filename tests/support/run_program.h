// Runs one of the programs in TESSERA_BIN, as a user would, and keeps what it printed.
#pragma once

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/temp_folder.h"

namespace tessera::test {

[[nodiscard]] inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    throw std::runtime_error("cannot read " + path.string());
  }
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void write_bytes(const std::filesystem::path& path, std::string_view content) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  if (!out.flush()) {
    throw std::runtime_error("cannot write " + path.string());
  }
}

struct RunResult {
  int status;  // exit status; 128 + signal if a signal ended it
  std::string out;
  std::string err;
};

/// A program under way. Its output goes to files, so it can never block on us.
class RunningProgram {
 public:
  /// `name` is that of a program in TESSERA_BIN. `environment` has entries NAME=VALUE to add.
  RunningProgram(const std::string& name, std::vector<std::string> arguments,
                 std::vector<std::string> environment = {}) {
    const char* folder = std::getenv("TESSERA_BIN");
    if (folder == nullptr) {
      throw std::runtime_error("TESSERA_BIN is not set: run the tests through ctest");
    }
    arguments.insert(arguments.begin(), std::string(folder) + "/" + name);
    for (char** variable = ::environ; *variable != nullptr; ++variable) {
      environment.emplace_back(*variable);
    }
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    constexpr mode_t kMode = 0600;
    const std::string out = (folder_ / "out").string();
    const std::string err = (folder_ / "err").string();
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), O_WRONLY | O_CREAT,
                                       kMode);
    ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT,
                                       kMode);
    const auto pointers = [](std::vector<std::string>& texts) {
      std::vector<char*> list;
      list.reserve(texts.size() + 1);
      for (std::string& text : texts) {
        list.push_back(text.data());
      }
      list.push_back(nullptr);
      return list;
    };
    // As from a shell, also where the test itself ignores the signal of the file size limit.
    sigset_t file_size;
    sigemptyset(&file_size);
    sigaddset(&file_size, SIGXFSZ);
    posix_spawnattr_t attributes;
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    ::posix_spawnattr_setsigdefault(&attributes, &file_size);
    const int error = ::posix_spawn(&process_, arguments[0].c_str(), &actions, &attributes,
                                    pointers(arguments).data(), pointers(environment).data());
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&actions);
    if (error != 0) {
      throw std::system_error(error, std::generic_category(), "cannot start " + arguments[0]);
    }
  }
  ~RunningProgram() {
    if (process_ > 0) {
      ::kill(process_, SIGKILL);
      ::waitpid(process_, nullptr, 0);
    }
  }
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  void send(int signal) const { ::kill(process_, signal); }

  RunResult wait() {
    int status = 0;
    while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
    }
    process_ = -1;
    constexpr int kSignalled = 128;
    return {WIFSIGNALED(status) ? kSignalled + WTERMSIG(status) : WEXITSTATUS(status),
            read_bytes(folder_ / "out"), read_bytes(folder_ / "err")};
  }

 private:
  TempFolder folder_;
  pid_t process_ = -1;
};

inline RunResult run_program(const std::string& name, std::vector<std::string> arguments,
                             std::vector<std::string> environment = {}) {
  return RunningProgram(name, std::move(arguments), std::move(environment)).wait();
}

}  // namespace tessera::test
