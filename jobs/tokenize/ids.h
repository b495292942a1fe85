// Token ids made elsewhere to token files.
#pragma once

#include "jobs/tokenize/options.h"

namespace tessera::tokenize {

/// Writes the ids in options.paths to the token files, with their masks. Throws ConfigError or
/// FormatError, before anything is written, where ids are not what the options say.
void tokenize_ids(const Options& options);

}  // namespace tessera::tokenize
