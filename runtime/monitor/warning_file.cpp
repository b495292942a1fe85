#include "runtime/monitor/warning_file.h"

#include <cerrno>
#include <chrono>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "kernels/base/input_file.h"
#include "kernels/base/log.h"
#include "kernels/base/progress.h"
#include "model/json_text.h"

namespace tessera {

void keep_warnings(const std::filesystem::path& out, int rank, const std::string& host) {
  const std::filesystem::path file = out / "warnings.jsonl";
  const OpenedFile first = open_regular_file(file, O_WRONLY | O_APPEND);
  if (first.is_open()) {
    (void)::close(first.descriptor);
  } else if (first.code != ENOENT && rank == 0) {
    log_line(LogLevel::warning, fmt::format("cannot write {}: {}; warnings are on stderr alone",
                                            file.string(), first.failure));
  }
  set_log_listener([file, rank, host](LogLevel level, std::string_view message) {
    using std::chrono::system_clock;
    const nlohmann::ordered_json line = {{"step", progress().step.load(std::memory_order_relaxed)},
                                         {"event", level_name(level)},
                                         {"time", system_clock::to_time_t(system_clock::now())},
                                         {"text", std::string(message)},
                                         {"rank", rank},
                                         {"host", host}};
    const std::string text = json_text(line) + "\n";
    const OpenedFile opened = open_regular_file(file, O_WRONLY | O_CREAT | O_APPEND);
    if (opened.is_open()) {
      // One write, so that lines of several ranks do not mix; what it says was said on stderr.
      [[maybe_unused]] const ssize_t written = ::write(opened.descriptor, text.data(), text.size());
      (void)::close(opened.descriptor);
    }
  });
}

}  // namespace tessera
