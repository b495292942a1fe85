// What a run tells about itself while it goes on: the progress line for people, and
// OUT/metrics.jsonl, one JSON object a line, for programs. Rank 0 alone has one.
//
// Fields of a step's line (numbers round-trip; what is not finite is null):
//   step               1 at the first
//   loss               nats per target, mean over the global batch
//   grad_norm          L2 norm of the global gradient, before clipping
//   lr                 learning rate of this step
//   tokens             tokens of this step, all ranks
//   targets            of them, those that counted
//   tokens_per_second  of this step, all ranks
//   seconds            of this step
//   skipped            true: loss or gradient was not finite and nothing was changed
//   paged_bytes        optimizer state moved between host and device on rank 0; 0 if all is
//   resident
// Of an evaluation: step, eval_loss, eval_targets, and bits_per_byte where the bytes are known.
// Of an event: step, event ("start", "resume", "save", "save failed", "stop"), text.
#pragma once

#include <cstdio>
#include <filesystem>
#include <string>

#include "runtime/trainer.h"

namespace tessera {

struct MetricsOptions {
  std::filesystem::path out;
  std::int64_t steps = 0;     // in all
  Index tokens_per_step = 0;  // all ranks
  Index log_every = 1;
  std::int64_t continue_after = 0;  // lines of later steps are dropped: they will be written again
};

/// What is shown beside a step: a warning that stays until it is over.
struct StepContext {
  std::size_t paged_bytes = 0;
  std::int64_t skipped_in_all = 0;
  std::string_view warning;
};

class Metrics {
 public:
  /// Opens OUT/metrics.jsonl to append. Throws WriteError.
  explicit Metrics(const MetricsOptions& options);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void step(const StepReport& report, const StepContext& context);
  /// `bits_per_byte` below 0: unknown.
  void evaluation(std::int64_t step, const EvalReport& report, double bits_per_byte);
  void event(std::int64_t step, std::string_view event, std::string_view text);
  /// A line for people alone.
  void say(std::string_view line);

 private:
  void write_line(std::string_view json);

  MetricsOptions options_;
  int file_ = -1;
  bool terminal_;
  bool line_open_ = false;  // the progress line on the terminal has no newline yet
  bool write_failed_ = false;
  double started_;
  double smooth_seconds_ = 0;  // of a step, for the time left
};

}  // namespace tessera
