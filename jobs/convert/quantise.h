// A model whose blocks' matrices are stored in 4 bits.
#pragma once

#include "jobs/convert/options.h"

namespace tessera {

/// Writes the model of a Hugging Face folder, a run or a step as model/nf4_files.h has it, whole or not
/// at all.
void quantise_model(const ConvertOptions& options);

}  // namespace tessera
