#include "runtime/monitor/metrics.h"

#include <cerrno>
#include <chrono>
#include <cmath>
#include <fstream>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/hash.h"
#include "kernels/base/input_file.h"
#include "kernels/base/log.h"
#include "kernels/base/quantity.h"
#include "kernels/base/standard_streams.h"
#include "kernels/base/terminal.h"
#include "kernels/base/write_failure.h"
#include "model/json_text.h"
#include "runtime/monitor/progress_line.h"

namespace tessera {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20U;  // of a file, kept in memory
constexpr const char* kMetrics = "metrics.jsonl";
constexpr const char* kSupersededMetrics = ".superseded-metrics.jsonl";
constexpr double kSmoothing = 0.1;  // weight of the last step in the time left

// Seconds since 1970, to the millisecond.
double unix_seconds() {
  using std::chrono::milliseconds;
  constexpr double kPerSecond = 1000;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<double>(std::chrono::duration_cast<milliseconds>(now).count()) / kPerSecond;
}

std::string json_number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

// Whole lines, written behind what a file holds in pieces.
class LineFile {
 public:
  explicit LineFile(File file) : file_(std::move(file)), written_(file_.size()) {}
  void add(std::string_view line) {
    piece_ += line;
    piece_ += '\n';
    if (piece_.size() > kPieceBytes) {
      flush();
    }
  }
  // On the device when this returns.
  void close() {
    flush();
    file_.sync();
    file_.close();
  }

 private:
  void flush() {
    file_.write_at(written_, bytes_of(piece_));
    written_ += piece_.size();
    piece_.clear();
  }
  File file_;
  std::uint64_t written_;
  std::string piece_;
};

bool is_of_step_up_to(std::string_view line, std::int64_t last) {
  const nlohmann::json json = parse_json_line(std::string(line));
  return json.is_object() && json.contains("step") && json["step"].is_number_integer() &&
         json["step"].get<std::int64_t>() <= last;
}

// Keeps the lines up to step `last`, each with its end, since a run that continues from there
// writes the others again; those go behind what `.superseded-metrics.jsonl` holds. The file is
// replaced as a whole, and after that, so that a crash loses no line.
void supersede_lines_after(const std::filesystem::path& file, std::int64_t last) {
  std::ifstream in(file);
  if (!in) {
    return;
  }
  std::error_code ignored;
  // a link stays one: what it leads to is replaced
  const std::filesystem::path target = std::filesystem::canonical(file, ignored);
  const std::filesystem::path kept = target.string() + ".new";
  std::filesystem::remove(kept, ignored);  // of a process that was killed here
  LineFile keeps(File::create(kept));
  std::optional<LineFile> leaves;
  std::string line;
  while (std::getline(in, line)) {
    if (is_of_step_up_to(line, last)) {
      keeps.add(line);
      continue;
    }
    if (!leaves) {
      leaves.emplace(File::open_or_create(file.parent_path() / kSupersededMetrics));
    }
    leaves->add(line);
  }
  if (in.bad()) {
    throw FormatError(fmt::format("cannot read {}", file.string()), TESSERA_HERE);
  }
  if (leaves) {
    leaves->close();
  }
  keeps.close();
  rename_over(kept, target);
}

[[noreturn]] void refuse_file(const std::filesystem::path& file, const OpenedFile& opened) {
  throw WriteError(fmt::format("cannot write {}: {}", file.string(),
                               opened.code == 0 ? opened.failure : write_failure(opened.code)),
                   TESSERA_HERE);
}

// The descriptor. Throws WriteError.
int open_to_append(const std::filesystem::path& file) {
  const OpenedFile opened = open_regular_file(file, O_WRONLY | O_CREAT | O_APPEND);
  if (!opened.is_open()) {
    refuse_file(file, opened);
  }
  return opened.descriptor;
}

}  // namespace

Metrics::Metrics(const MetricsOptions& options) : options_(options) {
  const std::filesystem::path file = options.out / kMetrics;
  (void)::close(open_to_append(file));  // before it is read: a named pipe would wait for a writer
  supersede_lines_after(file, options.continue_after);
  file_ = open_to_append(file);
}

void Metrics::require_place(const std::filesystem::path& out) {
  for (const char* name : {kMetrics, kSupersededMetrics}) {
    const std::filesystem::path file = out / name;
    const OpenedFile opened = open_regular_file(file, O_WRONLY | O_APPEND);
    std::error_code ignored;
    const bool is_link = std::filesystem::is_symlink(file, ignored);  // to nothing
    if (opened.is_open()) {
      (void)::close(opened.descriptor);
    } else if (opened.code != ENOENT || is_link) {
      refuse_file(file, opened);
    }
  }
}

Metrics::~Metrics() {
  end_status();
  if (file_ >= 0) {
    (void)::close(file_);
  }
}

// A full disk must not end the training: it is reported once, then the numbers go to the progress
// line alone, until there is room again. What was written of a line is taken back, so that the next
// is whole.
void Metrics::write_line(std::string_view json) {
  const off_t end = ::lseek(file_, 0, SEEK_END);
  const int code = write_all(file_, fmt::format("{}\n", json));
  if (code == 0) {
    return;
  }
  const bool is_whole = end >= 0 && ::ftruncate(file_, end) == 0;
  if (!std::exchange(write_failed_, true)) {
    log_line(LogLevel::warning,
             fmt::format("cannot write {}: {}; training continues without it{}",
                         (options_.out / "metrics.jsonl").string(), write_failure(code),
                         is_whole ? "" : " (half a line is left)"));
  }
}

void Metrics::say(std::string_view line) {
  say_text(for_terminal(line, STDOUT_FILENO) + "\n");
}

void Metrics::step(const StepReport& report, const StepContext& context) {
  const double rate =
      static_cast<double>(options_.tokens_per_step - report.padding) / report.seconds;
  const PagingReport& paging = report.paging;
  write_line(fmt::format(
      R"({{"step":{},"loss":{},"grad_norm":{},"lr":{},"tokens":{},"padding":{},"targets":{},)"
      R"("tokens_per_second":{},"seconds":{},"skipped":{},)"
      R"("pages":{},"resident_pages":{},"state_device_bytes":{},)"
      R"("paged_in_bytes":{},"paged_out_bytes":{},"sweep_seconds":{},)"
      R"("sweep_bytes_per_second":{},"exposed_update_seconds":{},)"
      R"("exposed_exchange_seconds":{}}})",
      report.step, report.targets == 0 ? "null" : json_number(report.loss),
      json_number(report.grad_norm), json_number(report.lr), options_.tokens_per_step,
      report.padding, report.targets, json_number(rate), json_number(report.seconds),
      report.skipped, paging.pages, paging.resident_pages, paging.device_bytes, paging.bytes_in,
      paging.bytes_out, json_number(paging.seconds), json_number(paging.bytes_per_second()),
      json_number(report.exposed_update_seconds), json_number(report.exposed_exchange_seconds)));

  smooth_seconds_ = smooth_seconds_ == 0
                        ? report.seconds
                        : (1 - kSmoothing) * smooth_seconds_ + kSmoothing * report.seconds;
  const ProgressFacts facts = {
      .steps = options_.steps,
      .tokens_per_second = rate,
      .seconds_left = smooth_seconds_ * static_cast<double>(options_.steps - report.step),
      .clip = options_.clip,
      .has_loss_terms = options_.has_loss_terms,
      .eval_loss = evaluation_ ? evaluation_->loss : std::nullopt,
      .memory_bytes = memory_bytes(),
      .skipped_in_all = context.skipped_in_all,
      .warning = context.warning};
  if (const std::size_t width = terminal_width(STDOUT_FILENO); width > 1) {
    // The last column stays free: a full line would make some terminals scroll.
    show_status(STDOUT_FILENO,
                progress_text(report, facts, width - 1,
                              takes_colours(STDOUT_FILENO) ? Colours::on : Colours::off));
  } else if (report.step % options_.log_every == 0 || report.step == options_.steps ||
             report.skipped) {
    say(progress_text(report, facts, 0, Colours::off));
  }
}

std::size_t Metrics::memory_bytes() {
  constexpr double kInterval = 10;  // seconds
  const double now = host_seconds();
  if (options_.memory_bytes && (memory_asked_ == 0 || now - memory_asked_ >= kInterval)) {
    memory_bytes_ = options_.memory_bytes();
    memory_asked_ = now;
  }
  return memory_bytes_;
}

void Metrics::evaluation(std::int64_t step, const EvalReport& report, const EvalContext& context) {
  if (!evaluation_ || evaluation_->name == context.name) {
    evaluation_ = {context.name, report.loss};
  }
  const bool known = context.bits_per_byte >= 0;
  write_line(fmt::format(
      R"({{"step":{},{}"eval_loss":{},"eval_accuracy":{},"eval_targets":{},)"
      R"("eval_sequences":{},"eval_file_sequences":{}{}}})",
      step,
      context.name.empty() ? std::string() : fmt::format(R"("eval_name":"{}",)", context.name),
      report.loss ? json_number(*report.loss) : "null",
      report.loss ? json_number(report.accuracy()) : "null", report.targets, context.sequences,
      context.file_sequences,
      known ? fmt::format(R"(,"bits_per_byte":{})", json_number(context.bits_per_byte))
            : std::string()));
  const std::string what =
      context.name.empty() ? "evaluation" : fmt::format("evaluation {}", context.name);
  const std::string over = part_text(context.sequences, context.file_sequences, "sequence");
  if (!report.loss) {
    say(fmt::format("{} at step {}: no targets in {}", what, step, over));
    return;
  }
  say(fmt::format(
      "{} at step {}: loss {:.4f} nats per token, accuracy {:.2f}% over {} targets{}, {}", what,
      step, *report.loss, 100 * report.accuracy(), report.targets,
      known ? fmt::format(", {:.4f} bits per byte", context.bits_per_byte) : std::string(), over));
}

void Metrics::event(std::int64_t step, std::string_view event, std::string_view text) {
  this->event(step, event, text, nlohmann::ordered_json::object());
}

void Metrics::event(std::int64_t step, std::string_view event, std::string_view text,
                    const nlohmann::ordered_json& fields) {
  nlohmann::ordered_json all = {{"text", std::string(text)}};
  all.update(fields);
  record(step, event, all);
  say(text);
}

void Metrics::record(std::int64_t step, std::string_view event,
                     const nlohmann::ordered_json& fields) {
  nlohmann::ordered_json line = {
      {"step", step}, {"event", std::string(event)}, {"time", unix_seconds()}};
  line.update(fields);
  write_line(json_text(line));
}

}  // namespace tessera
