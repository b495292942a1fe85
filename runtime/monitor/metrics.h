// What a run reports while it is under way: the progress line for people, and
// OUT/metrics.jsonl, one JSON object a line, for programs. Rank 0 alone has one. What the lines
// hold is written down in runtime/monitor/metrics.md.
#pragma once

#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "runtime/run/trainer.h"

namespace tessera {

struct MetricsOptions {
  std::filesystem::path out;
  std::int64_t steps = 0;     // in all
  Index tokens_per_step = 0;  // all ranks
  Index log_every = 1;
  double clip = 0;              // largest norm of the gradient; 0: no clipping
  bool has_loss_terms = false;  // of ProgressFacts
  /// Lines of later steps go to `.superseded-metrics.jsonl`: the steps are done again.
  std::int64_t continue_after = 0;
  /// Of ProgressFacts; asked now and then. Null: not known.
  std::function<std::size_t()> memory_bytes = nullptr;
};

/// What is shown beside a step: a warning that stays until it is over.
struct StepContext {
  std::int64_t skipped_in_all = 0;
  std::string_view warning;
};

/// What an evaluation was made over.
struct EvalContext {
  std::string name;           // of the evaluation set; empty: it is the only one, and has none
  Index sequences = 0;        // that were evaluated
  Index file_sequences = 0;   // that the file has
  double bits_per_byte = -1;  // below 0: unknown
};

class Metrics {
 public:
  /// Opens OUT/metrics.jsonl to append. Throws WriteError.
  explicit Metrics(const MetricsOptions& options);
  /// Whether the constructor could open the files: throws what it would, and changes nothing.
  static void require_place(const std::filesystem::path& out);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void step(const StepReport& report, const StepContext& context);
  void evaluation(std::int64_t step, const EvalReport& report, const EvalContext& context);
  /// `step` is the one that the event is about. `text` is printed for people too; `fields` is an
  /// object whose members follow in the line.
  void event(std::int64_t step, std::string_view event, std::string_view text);
  void event(std::int64_t step, std::string_view event, std::string_view text,
             const nlohmann::ordered_json& fields);
  /// An event for programs alone.
  void record(std::int64_t step, std::string_view event, const nlohmann::ordered_json& fields);
  /// A line for people alone.
  static void say(std::string_view line);

 private:
  void write_line(std::string_view json);
  [[nodiscard]] std::size_t memory_bytes();

  MetricsOptions options_;
  int file_ = -1;
  bool write_failed_ = false;  // and reported
  double smooth_seconds_ = 0;  // of a step, for the time left
  struct LastEvaluation {
    std::string name;
    std::optional<double> loss;
  };
  std::optional<LastEvaluation> evaluation_;  // of the first set, which the progress line shows
  std::size_t memory_bytes_ = 0;              // when it was asked last
  double memory_asked_ = 0;                   // host_seconds; 0: never
};

}  // namespace tessera
