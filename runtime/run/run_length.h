// How many steps a run has, where --epochs or --tokens say how long it is, and how that is shown.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/run/config.h"

namespace tessera {

/// What a run that is continued has done.
struct WorkDone {
  std::int64_t step = 0;
  Index sequences = 0;  // taken of the data order
};

/// What one pass over the data has.
struct DataPass {
  Index sequences = 0;
  Index tokens = 0;
};

/// The same with `steps` set, in its stored texts too, where --epochs or --tokens are given: so
/// many that at least that much of the data is taken, counted from the run's first step. If the
/// steps so far had another --global-batch, those that are left make up the rest. --epochs leaves
/// `steps` 0 (not known) where `pass_sequences` is 0. Throws ConfigError for more steps than a run
/// can have.
[[nodiscard]] RunConfig with_steps(RunConfig config, Index pass_sequences,
                                   const WorkDone& done = {});

/// "--steps 20", "--epochs 2 (40 steps)", "--tokens 5000 (10 steps)".
[[nodiscard]] std::string length_text(const RunConfig& config);

/// What became of the length of a run that is continued with other steps: "--steps was 20 and is
/// 40", "--epochs was 1 (20 steps) and is 2 (40 steps)". Requires: the steps of both are known.
[[nodiscard]] std::string length_change(const RunConfig& before, const RunConfig& now);

/// "2.25 passes", of all steps of the run. Requires: the steps are known.
[[nodiscard]] std::string run_passes_text(const RunConfig& config, const DataPass& pass,
                                          const WorkDone& done = {});

/// What one pass is in steps, and the run in steps or passes: "one pass over the data is 9 steps:
/// 144 sequences with 4,592 tokens; --epochs 0.5 is 5 steps, rounded up".
/// Requires: the steps are known.
[[nodiscard]] std::string pass_text(const RunConfig& config, const DataPass& pass,
                                    const WorkDone& done = {});

}  // namespace tessera
