// tokenize: text, or token ids made elsewhere, to the HDF5 token files that train reads.
#include <chrono>
#include <iostream>
#include <optional>

#include <fmt/format.h>

#include "jobs/program.h"
#include "jobs/tokenize/check.h"
#include "jobs/tokenize/ids.h"
#include "jobs/tokenize/options.h"
#include "jobs/tokenize/records.h"
#include "jobs/tokenize/text.h"

namespace tessera::tokenize {
namespace {

int run(int argc, char** argv) {
  std::optional<Options> options = parse_options(argc, argv);
  if (!options) {
    return 0;
  }
  if (options->check) {
    check_files(*options);
    return 0;
  }
  complete(*options);
  const auto start = std::chrono::steady_clock::now();
  if (options->tokenizer == kIds) {
    tokenize_ids(*options);
  } else if (!options->field.empty() || !options->chat.empty()) {
    tokenize_records(*options);
  } else {
    tokenize_text(*options);
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  print_lines(fmt::format("took {:.1f} s\n", elapsed.count()));
  return 0;
}

}  // namespace
}  // namespace tessera::tokenize

int main(int argc, char** argv) {
  return tessera::run_program("tokenize", [&] { return tessera::tokenize::run(argc, argv); });
}
