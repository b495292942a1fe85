// The model that a run trains: what --model, --init and the data say of it, the same on every rank.
#pragma once

#include <string>

#include "collectives/mpi_session.h"
#include "model/model_config.h"
#include "runtime/run/config.h"

namespace tessera {

/// --model, or in its place the model of the folder of --init. Its vocabulary is 0 where it is the
/// data's. Refuses ranks that name different ones, before anything that is as large as the model.
/// Collective. Throws ConfigError, FormatError, agreed.
[[nodiscard]] ModelConfig agreed_model(MpiSession& session, const RunConfig& options);
/// The same with the vocabulary of the data where the model has none of its own. Throws
/// ConfigError, FormatError.
[[nodiscard]] ModelConfig with_vocabulary(ModelConfig config, const RunConfig& options);

/// What a user should know who names the config.json of a folder that has weights too, and starts
/// from random ones; else empty.
[[nodiscard]] std::string random_weights_text(const RunConfig& options);

}  // namespace tessera
