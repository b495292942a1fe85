// `train --tune-gemm FILE`: which algorithms the model's GEMMs take on a GPU, timed once
// and the same on every rank from then on (kernels/gemm_tuning.h).
#pragma once

#include <filesystem>
#include <string>

#include "runtime/run/training_scratch.h"

namespace tessera {

class MpiSession;

/// Times cuBLASLt's proposals for every product of a training step of `config` on this rank, by
/// running one block, embedding and head forward and backward with tuning on. Needs device memory
/// for that much; all of it is given back. Does nothing for shapes that have an entry.
///
/// Source of the method: the proposals are cublasLtMatmulAlgoGetHeuristic's (cuBLAS documentation,
/// "cublasLtMatmulAlgoGetHeuristic"). Throws ConfigError on the CPU; DeviceError.
void tune_gemm(const ModelConfig& config, const ScratchOptions& scratch, Device device);

/// Uses the table in `file` on every rank; where there is no such file, or it lacks shapes of this
/// run, rank 0 times them and writes the file whole. Collective; returns the table's hash in hex.
/// Throws on every rank alike: FormatError, ConfigError for a table of another card or library,
/// WriteError.
std::string choose_gemm(MpiSession& session, const std::filesystem::path& file,
                        const ModelConfig& config, const ScratchOptions& scratch, Device device);

}  // namespace tessera
