#include "runtime/metrics.h"

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/ioctl.h>
#include <unistd.h>

#include "kernels/device/error.h"
#include "kernels/device/log.h"
#include "runtime/quantity.h"

namespace tessera {
namespace {

constexpr int kFileMode = 0666;     // the umask takes its part
constexpr double kSmoothing = 0.1;  // weight of the last step in the time left

double host_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string json_number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

std::string json_text(std::string_view text) {
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string system_reason() {
  return std::strerror(errno);
}

// 0 where standard output is no terminal that people look at. mpirun gives its ranks
// pseudo-terminals without a width, whatever its own output is: they get plain lines.
std::size_t terminal_width() {
  winsize size{};
  return isatty(STDOUT_FILENO) == 1 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col
                                                                                    : 0;
}

// Keeps the lines up to step `last`: a run that continues from there writes the others again. The
// file is replaced as a whole, so that a crash leaves the old or the new one.
void drop_lines_after(const std::filesystem::path& file, std::int64_t last) {
  std::ifstream in(file);
  if (!in) {
    return;
  }
  const std::filesystem::path kept = file.string() + ".new";
  {
    std::ofstream out(kept, std::ios::trunc);
    std::string line;
    while (std::getline(in, line)) {
      const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
      if (json.is_object() && json.contains("step") && json["step"].is_number_integer() &&
          json["step"].get<std::int64_t>() <= last) {
        out << line << '\n';
      }
    }
    out.flush();
    if (!out) {
      throw WriteError(fmt::format("cannot write {}", kept.string()), TESSERA_HERE);
    }
  }
  std::filesystem::rename(kept, file);
}

}  // namespace

Metrics::Metrics(const MetricsOptions& options)
    : options_(options), terminal_(terminal_width() > 1), started_(host_seconds()) {
  const std::filesystem::path file = options.out / "metrics.jsonl";
  drop_lines_after(file, options.continue_after);
  file_ = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kFileMode);
  if (file_ < 0) {
    throw WriteError(fmt::format("cannot write {}: {}", file.string(), system_reason()),
                     TESSERA_HERE);
  }
}

Metrics::~Metrics() {
  if (line_open_) {
    (void)std::fputc('\n', stdout);
    (void)std::fflush(stdout);
  }
  if (file_ >= 0) {
    (void)::close(file_);
  }
}

// A full disk must not end the training: said once, then the numbers go to the progress line alone.
void Metrics::write_line(std::string_view json) {
  const std::string line = std::string(json) + "\n";
  const ssize_t written = ::write(file_, line.data(), line.size());
  if (written != static_cast<ssize_t>(line.size()) && !write_failed_) {
    write_failed_ = true;
    log_line(LogLevel::warning,
             fmt::format("cannot write {}: {}; training goes on without it",
                         (options_.out / "metrics.jsonl").string(), system_reason()));
  }
}

void Metrics::say(std::string_view line) {
  if (line_open_) {
    (void)std::fputc('\n', stdout);
    line_open_ = false;
  }
  fmt::print(stdout, "{}\n", line);
  (void)std::fflush(stdout);
}

void Metrics::step(const StepReport& report, const StepContext& context) {
  const double rate = static_cast<double>(options_.tokens_per_step) / report.seconds;
  write_line(fmt::format(R"({{"step":{},"loss":{},"grad_norm":{},"lr":{},"tokens":{},"targets":{},)"
                         R"("tokens_per_second":{},"seconds":{},"skipped":{},"paged_bytes":{}}})",
                         report.step, json_number(report.loss), json_number(report.grad_norm),
                         json_number(report.lr), options_.tokens_per_step, report.targets,
                         json_number(rate), json_number(report.seconds), report.skipped,
                         context.paged_bytes));

  smooth_seconds_ = smooth_seconds_ == 0
                        ? report.seconds
                        : (1 - kSmoothing) * smooth_seconds_ + kSmoothing * report.seconds;
  const double left = smooth_seconds_ * static_cast<double>(options_.steps - report.step);
  std::string line = fmt::format(
      "step {}/{}  loss {:.4f}  norm {:.3f}  lr {:.2e}  {:.0f} tok/s  {} left", report.step,
      options_.steps, report.loss, report.grad_norm, report.lr, rate, format_duration(left));
  if (report.skipped) {
    line += "  SKIPPED: not finite";
  }
  if (context.skipped_in_all > 0) {
    line += fmt::format("  ({} skipped)", context.skipped_in_all);
  }
  if (!context.warning.empty()) {
    line += fmt::format("  ! {}", context.warning);
  }
  if (terminal_) {
    fmt::print(stdout, "\r\033[K{}", line.substr(0, terminal_width() - 1));
    line_open_ = true;
    (void)std::fflush(stdout);
  } else if (report.step % options_.log_every == 0 || report.step == options_.steps ||
             report.skipped) {
    say(line);
  }
}

void Metrics::evaluation(std::int64_t step, const EvalReport& report, double bits_per_byte) {
  const bool known = bits_per_byte >= 0;
  write_line(fmt::format(
      R"({{"step":{},"eval_loss":{},"eval_targets":{}{}}})", step, json_number(report.loss),
      report.targets,
      known ? fmt::format(R"(,"bits_per_byte":{})", json_number(bits_per_byte)) : std::string()));
  say(fmt::format("evaluation at step {}: loss {:.4f} nats per token over {} targets{}", step,
                  report.loss, report.targets,
                  known ? fmt::format(", {:.4f} bits per byte", bits_per_byte) : std::string()));
}

void Metrics::event(std::int64_t step, std::string_view event, std::string_view text) {
  write_line(fmt::format(R"({{"step":{},"event":{},"text":{}}})", step, json_text(event),
                         json_text(text)));
  say(text);
}

}  // namespace tessera
