#include "jobs/tokenize/check.h"

#include <iostream>

#include <fmt/format.h>

#include "jobs/program.h"
#include "jobs/tokenize/outputs.h"
#include "kernels/base/error.h"
#include "runtime/data/token_file.h"

namespace tessera::tokenize {

void check_files(const Options& options) {
  if (options.paths.empty()) {
    throw ConfigError("--check names no token file", TESSERA_HERE);
  }
  for (const Path& path : options.paths) {
    const TokenFile file(path);
    file.verify_content();
    print_contents(file);
    print_lines(fmt::format("  tokenizer {}{}{}, source {}, content hash {}: as written\n",
                            file.info().tokenizer, file.info().tokenizer_name.empty() ? "" : " ",
                            file.info().tokenizer_name, file.info().source, file.content_hash()));
    for (const TokenizerFile& companion : file.tokenizer_companions()) {
      print_lines(fmt::format("  beside the tokenizer: {}, {} bytes\n", companion.name,
                              companion.content.size()));
    }
  }
}

}  // namespace tessera::tokenize
