// Shows what a checkpoint is and whether it is well. Reads only; needs neither MPI nor a GPU; holds
// a few blocks of 16 MiB at a time, whatever the size of the checkpoint.
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "jobs/inspect/adapter_folder.h"
#include "jobs/inspect/describe.h"
#include "jobs/inspect/difference.h"
#include "jobs/inspect/element.h"
#include "jobs/inspect/options.h"
#include "jobs/inspect/output.h"
#include "jobs/inspect/run_summary.h"
#include "jobs/inspect/steps.h"
#include "jobs/inspect/tensors.h"
#include "jobs/inspect/token_file.h"
#include "jobs/program.h"
#include "kernels/base/error.h"
#include "kernels/base/file_status.h"
#include "kernels/base/read_retry.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/data/header_checksum.h"

namespace tessera::inspect {
namespace {

void inspect_step(const Options& options, const std::filesystem::path& folder, ReadRetry& retry,
                  Output& out) {
  out.document["folder"] = folder.string();
  if (!options.has_action()) {
    tell_state(folder, retry, out);
  }
  std::optional<CheckpointReader> reader;
  try {
    reader.emplace(folder, retry);
  } catch (const FormatError& error) {
    if (!options.verify) {
      throw;
    }
    say_verified({error.message()}, 0, out);
    return;
  }
  if (options.command) {
    show_command(folder, reader->info(), out);
  }
  if (out.is_text() && !options.command) {
    std::cout << folder.string() << '\n';
  }
  if (out.is_json || !options.has_action()) {
    describe(*reader, out);
  }
  if (options.verify) {
    const std::vector<std::string> damages = with_progress(
        "verify", [&](const ByteProgress& progress) { return reader->find_damage(progress); });
    say_verified(damages, reader->data_bytes(), out);
    if (!damages.empty()) {
      return;  // the rest would stop at the damage
    }
  }
  if (!options.param.empty()) {
    if (options.at.empty()) {
      show_param(*reader, options.param, out);
    } else {
      show_element(*reader, options.param, options.at, out);
    }
  }
  if (options.stats) {
    show_statistics(*reader, out);
  }
  if (!options.diff.empty()) {
    show_difference(*reader, options.diff, retry, out);
  }
  if (options.hash) {
    show_hashes(*reader, out);
  }
}

// Or was one, before something happened to it.
bool is_token_file(const std::filesystem::path& path) {
  return path_exists(path) && !is_folder(path) && begins_as_token_file(path);
}

int run(int argc, char** argv) {
  const std::optional<Options> options = parse_options(argc, argv);
  if (!options) {
    return 0;
  }
  Output out{.is_json = options->json};
  ReadRetry retry;  // of all that is read
  if (is_token_file(options->target)) {
    describe_token_file(*options, out);
  } else if (is_adapter_folder(options->target)) {
    describe_adapter_folder(*options, out);
  } else {
    if (options->seq > 0) {
      throw ConfigError("--seq is for token files, and " + options->target.string() + " is not one",
                        TESSERA_HERE);
    }
    inspect_step(*options, choose_step(*options, retry, out), retry, out);
  }
  if (out.is_json) {
    out.print_document();
  }
  return out.status;
}

}  // namespace
}  // namespace tessera::inspect

int main(int argc, char** argv) {
  return tessera::run_program("inspect", [&] { return tessera::inspect::run(argc, argv); });
}
