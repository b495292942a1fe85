// A whole training run of a very small model, as one function from settings to the bits it ends
// with.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "runtime/run/training_run.h"
#include "tests/support/run/memory_batches.h"

namespace tessera::test {

/// Everything that must be equal where the design promises equality.
struct RunBits {
  std::vector<double> losses;
  std::vector<double> norms;
  std::uint64_t parameters = 0;
  std::vector<float> state;  // this rank's master weights and moments
  /// Equal in bits (NaN equals NaN), the rank's own state left out.
  friend bool operator==(const RunBits& a, const RunBits& b);
};
[[nodiscard]] std::string text_of(const RunBits& bits);

struct SmallRunOptions {
  Device device;
  ModelConfig config;  // small_config() by default
  RunSettings settings;
  int steps = 4;
  std::vector<std::int32_t> tokens;  // small_tokens() by default
  std::vector<std::int32_t> targets;
  /// As MemoryBatchesOptions'; where there are some, settings.scratch.attention says so.
  std::vector<std::vector<Index>> documents = {};
  /// Called between set-up and the first step, and after each step.
  std::function<void(TrainingRun&)> before;
  std::function<void(TrainingRun&, const StepReport&)> after_step;
};

[[nodiscard]] ModelConfig small_config(bool tied = true);
/// Global batch 16, micro-batch 2, 16 tokens, f32, a rate that moves every weight.
[[nodiscard]] RunSettings small_settings();
/// 40 sequences of 16 tokens from a fixed seed; some targets ignored, the last sequence wholly.
[[nodiscard]] SmallRunOptions small_options(bool tied = true);

/// Of this rank of `comm`.
[[nodiscard]] MemoryBatchesOptions batches_of(const SmallRunOptions& options,
                                              const Communicator& comm);

/// What evaluations of the same 7 micro-batches give between the steps of a run: with more ranks some
/// have none at the end. Collective over `comm`.
[[nodiscard]] std::vector<EvalReport> evaluations_of(SmallRunOptions options, Communicator& comm);

/// Collective over `comm`.
[[nodiscard]] RunBits run_small(const SmallRunOptions& options, Communicator& comm);

}  // namespace tessera::test
