// What all ranks of a run must have been given alike, as named values for require_same_start: the
// options, and what stands behind the paths among them. One place, so that nothing that can change
// results, or which collectives there are, depends on the rank that reads it.
//
// Contents are compared by what their files already store (content hashes of token files, the id of
// a save) or by a sample; no file is read whole for it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/model_config.h"
#include "runtime/data/token_file.h"
#include "runtime/launch/startup_check.h"
#include "runtime/run/options.h"
#include "runtime/run/resume.h"

namespace tessera {

class MpiSession;

/// What was asked for (a run, --help, --version), the options that must agree (see the table of
/// options.cpp), and the environment variables that change how libraries compute.
[[nodiscard]] std::vector<NamedValue> start_values(const ParsedOptions& parsed);

/// Each field of the model, under the name that config.json has for it.
[[nodiscard]] std::vector<NamedValue> model_values(const ModelConfig& config);

/// What a token file of `option` holds.
[[nodiscard]] NamedValue data_value(const std::string& option, const TokenFile& file);

/// What the weights of --init are: of a step its save; of a Hugging Face folder a hash of a sample
/// of every tensor, of which a few KiB are read. Throws FormatError.
[[nodiscard]] NamedValue weights_value(const InitWeights& weights);

/// A sentence for ranks whose devices give different bits; empty where there is one kind. No reason
/// to refuse: such a run is right, but not the same on another number of ranks.
///   devices  of each rank, in rank order
[[nodiscard]] std::string different_devices_text(std::span<const std::string> devices);

/// Collective. The folder that --init means, the same path on every rank: the newest complete step
/// of a run is rank 0's choice, since the run may be saving another one just now. Throws, agreed on
/// all ranks, FormatError and ConfigError.
[[nodiscard]] std::string agreed_init(MpiSession& session, const std::string& source);

}  // namespace tessera
