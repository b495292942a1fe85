#include "jobs/inspect/options.h"

#include <iostream>

#include <boost/program_options.hpp>
#include <fmt/format.h>

#include "kernels/base/error.h"
#include "runtime/run/command_words.h"

namespace tessera::inspect {
namespace {

namespace po = boost::program_options;

po::options_description visible_options(Options& options) {
  po::options_description description("Options");
  auto add = description.add_options();
  add("help", "this text");
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
      "XXH3-128 of each tensor; the last line is that of all, whatever the number of ranks");
  add("diff", po::value(&options.diff)->value_name("OTHER"),
      "compare with another run or step: equal bits, or the largest differences of each tensor");
  add("json", switch_value(options.json, "json"), "one JSON document instead of text");
  return description;
}

void print_help(const po::options_description& visible) {
  std::cout
      << "inspect RUN_OR_STEP [options]\n\n"
         "Shows what a checkpoint holds: of a run its steps and the newest complete one, of a "
         "step\n"
         "its ranks, shards and parameters.\n\n"
      << visible
      << "\nExit status: 0 all is well; 1 --diff found a difference; 2 wrong options; 3 damaged.\n";
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  std::string target;
  const po::options_description visible = visible_options(options);
  po::options_description all;
  all.add(visible).add_options()("target", po::value(&target));
  po::positional_options_description positional;
  positional.add("target", 1);
  po::variables_map values =
      read_words(words_of(argc, argv), all, positional, "inspect --help", Abbreviations::taken);
  po::notify(values);
  if (values.count("help") > 0) {
    print_help(visible);
    return std::nullopt;
  }
  if (target.empty()) {
    throw ConfigError("no run or step is given: inspect RUN_OR_STEP; see inspect --help",
                      TESSERA_HERE);
  }
  options.target = target;
  if (values.count("at") > 0 && options.param.empty()) {
    throw ConfigError(
        fmt::format("--at {} needs --param NAME: the parameter whose element it is", options.at),
        TESSERA_HERE);
  }
  return options;
}

}  // namespace tessera::inspect
