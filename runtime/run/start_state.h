// The state that a run begins with, or continues: the frozen base of adapters, and what is trained.
#pragma once

#include <optional>
#include <string>

#include "collectives/mpi_session.h"
#include "runtime/run/resume.h"

namespace tessera {

/// The options with the adapters that --init-adapter names in the place of --lora and what belongs to
/// it, and with --base-dtype nf4 where --init is in 4 bits, the same on every rank. Collective. Throws, agreed: FormatError, ConfigError.
[[nodiscard]] RunConfig agreed_adapters(MpiSession& session, const RunConfig& options);

/// The weights of --init where they are read: to start from, or as the base of adapters. Collective.
/// Throws, agreed: FormatError, ConfigError.
[[nodiscard]] std::optional<InitWeights> agreed_weights(MpiSession& session,
                                                        const RunConfig& options,
                                                        const std::optional<ResumePoint>& point);

/// What was loaded, for messages.
struct StartState {
  std::string text;     // "continuing after step 3 from ..."
  std::string weights;  // "the weights of ..."
};

/// Loads `point`, or what the options have a run start from, into `run`; of adapters first the base,
/// whose hash `identity` gets. `point`, and the steps of `options` with it, may become an earlier
/// step (load_state). Collective. Throws as load_state and load_weights, ConfigError for adapters of
/// another base.
[[nodiscard]] StartState load_start(MpiSession& session, RunConfig& options, RunIdentity& identity,
                                    std::optional<ResumePoint>& point,
                                    const std::optional<InitWeights>& weights, TrainingRun& run);

}  // namespace tessera
