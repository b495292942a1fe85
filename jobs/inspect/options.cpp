#include "jobs/inspect/options.h"

#include <boost/program_options.hpp>
#include <fmt/format.h>

#include "jobs/command_line.h"
#include "kernels/base/error.h"
#include "kernels/base/quantity.h"
#include "runtime/run/command_words.h"

namespace tessera::inspect {
namespace {

namespace po = boost::program_options;

po::options_description visible_options(Options& options) {
  po::options_description description = option_group("Options");
  auto add = description.add_options();
  add("verify", switch_value(options.verify, "verify"),
      "compare every byte with its checksum; names file, array, block and parameters of each "
      "damage");
  add("stats", switch_value(options.stats, "stats"),
      "min, max, mean, norm and numbers that are not finite, of weights and moments of each "
      "tensor");
  add("param", po::value(&options.param)->value_name("NAME"),
      "statistics, histogram and first values of one parameter");
  add("at", po::value(&options.at)->value_name("I,J"),
      "of --param this element alone: the rank that owns it, where its shard's file has it, and "
      "its values");
  add("hash", switch_value(options.hash, "hash"),
      "XXH3-128 of each tensor; the last line is that of all, weights and optimizer state, "
      "whatever the number of ranks "
      "(train's last line, parameters and 16 digits, is another hash, of the weights alone)");
  add("diff", po::value(&options.diff)->value_name("OTHER"),
      "compare with another run or step: whether all bits are equal, and the largest differences "
      "of each tensor that differs (with --json of each tensor)");
  add("command", switch_value(options.command, "command"),
      "the folder and the command that saved the step, and the versions of the program, libraries "
      "and driver that it ran with");
  add("seq", count_value(options.seq, {1, kMostTokens}, "seq")->value_name("TOKENS"),
      "of a token file: how its documents fill sequences of so many tokens (without it, of several "
      "lengths)");
  add("json", switch_value(options.json, "json"), "one JSON document instead of text");
  return description;
}

constexpr const char* kUsage =
    R"(inspect RUN_OR_STEP|TOKEN_FILE|ADAPTER_FOLDER [options]
    shows what a checkpoint holds: of a run its model, tokens seen, last losses, size on disk, its
    steps and the newest complete one; of a step its ranks, shards and parameters; of a token file its documents and how they fill sequences;
    and of a folder of PEFT's its adapters and the base that they were trained beside.
    Exit status: 0 all is well; 1 --diff found a difference; 2 wrong options; 3 damaged.

)";

}  // namespace

std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  std::optional<CommandLine> line =
      read_command_line(argc, argv, "inspect", kUsage, visible_options(options));
  if (!line) {
    return std::nullopt;
  }
  po::notify(line->given);
  if (line->words.size() != 1 || line->words.front().empty()) {
    throw ConfigError(fmt::format("{} run, step, token file or folder of PEFT's is given: inspect "
                                  "RUN_OR_STEP|TOKEN_FILE|ADAPTER_FOLDER (inspect "
                                  "--help)",
                                  line->words.size() > 1 ? "more than one" : "no"),
                      TESSERA_HERE);
  }
  options.target = line->words.front();
  if (line->given.contains("at") && options.param.empty()) {
    throw ConfigError(
        fmt::format("--at {} needs --param NAME: the parameter whose element it is", options.at),
        TESSERA_HERE);
  }
  return options;
}

}  // namespace tessera::inspect
