// Text files to token files.
#pragma once

#include "jobs/tokenize/options.h"

namespace tessera::tokenize {

/// Tokenises the text in options.paths and writes the token files. Throws ConfigError where there
/// is not text, FormatError where a named file is none.
void tokenize_text(const Options& options);

}  // namespace tessera::tokenize
