// What a run says of itself before its first step: about six lines for people, and OUT/start.txt with
// everything behind them: options, as --config reads them, and the tables of memory, as comments.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

#include "kernels/device/arena.h"
#include "model/model_config.h"
#include "runtime/plan/memory_plan.h"
#include "runtime/run/config.h"
#include "runtime/run/resume.h"
#include "runtime/run/run_data.h"

namespace tessera {

/// What it refers to may change between the six lines and the file: load_start may take an earlier step.
struct StartFacts {
  const RunConfig& options;  // with the steps of the run
  const ModelConfig& config;
  const MemoryPlan& plan;
  const RunData& data;
  Device device;
  int ranks = 1;
  int hosts = 1;
  int node_ranks = 1;                       // of RunSettings
  const std::optional<ResumePoint>& point;  // the step that is continued
  bool documents_are_automatic = false;     // --documents auto
};

/// What rank 0 prints once nothing speaks against the run: model, ranks and devices, data, steps,
/// memory, and what was left to the program; then, with --verbose, all options and tables; then
/// what the numbers of ranks and nodes mean for the results. Lines are broken at `width` columns;
/// 0: never.
[[nodiscard]] std::string start_text(const StartFacts& facts, std::size_t width);

/// The lines of `after` that are not in `before`, each with the lines that it is broken into: what is printed
/// where a start turns out to be another one.
[[nodiscard]] std::string changed_lines(const std::string& before, const std::string& after);

/// Writes OUT/start.txt anew, for this start; where no step is left to do, it stays that of the run
/// that made the steps. What keeps it from being written is a warning.
void write_start_file(const StartFacts& facts);
/// Whether it can be written: changes nothing. Throws WriteError, and ConfigError where another file
/// has its name.
void require_start_file_place(const std::filesystem::path& out);

}  // namespace tessera
