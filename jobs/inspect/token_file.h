// What a token file holds, and how its documents fill sequences.
#pragma once

#include "jobs/inspect/options.h"
#include "jobs/inspect/output.h"

namespace tessera::inspect {

/// Of options.target, a token file: tokens, documents and their lengths, and what `train --documents
/// separate` makes of them at --seq, or at several lengths where that is not given. Throws
/// ConfigError for options that are of checkpoints, and as TokenFile does.
void describe_token_file(const Options& options, Output& out);

}  // namespace tessera::inspect
