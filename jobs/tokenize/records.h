// JSON Lines to token files: a text field, or chats.
#pragma once

#include "jobs/tokenize/options.h"

namespace tessera::tokenize {

/// Reads the JSON Lines in options.paths (--field, --chat) and writes the token files. Bad lines are
/// refused with file and line, or counted up to --skip-bad. Throws ConfigError where there are no
/// documents, FormatError.
void tokenize_records(const Options& options);

}  // namespace tessera::tokenize
