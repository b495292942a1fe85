// Adapters on their way out: to PEFT's folder, or added to their base.
#pragma once

#include <filesystem>

#include "jobs/convert/options.h"
#include "runtime/checkpoint/reader.h"

namespace tessera {

/// Writes the adapters of a checkpoint as PEFT's folder. Throws ConfigError where `reader` has a model.
void export_adapters(CheckpointReader& reader, const ConvertOptions& options);

/// Writes the base of --base with the adapters of a run, a step or PEFT's folder added as a Hugging
/// Face folder.
void merge_adapters(const ConvertOptions& options);

}  // namespace tessera
