// tokenize --check.
#pragma once

#include "jobs/tokenize/options.h"

namespace tessera::tokenize {

/// Checks token files against their content hash and prints what is in them. Throws FormatError at
/// the first that is not as it was written.
void check_files(const Options& options);

}  // namespace tessera::tokenize
