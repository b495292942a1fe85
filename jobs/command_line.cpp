#include "jobs/command_line.h"

#include <iostream>

#include <fmt/format.h>

#include "kernels/device/error.h"

namespace tessera {

namespace po = boost::program_options;

std::optional<CommandLine> read_command_line(int argc, char** argv, std::string_view program,
                                             std::string_view usage,
                                             const po::options_description& shown, int style) {
  po::options_description all;
  all.add(shown).add_options()("positional", po::value<std::vector<std::string>>());
  po::positional_options_description positions;
  positions.add("positional", -1);
  CommandLine line;
  try {
    po::store(
        po::command_line_parser(argc, argv).options(all).positional(positions).style(style).run(),
        line.given);
    po::notify(line.given);
  } catch (const po::error& error) {
    throw ConfigError(fmt::format("{} ({} --help lists the options)", error.what(), program),
                      TESSERA_HERE);
  }
  if (line.given.count("help") > 0) {
    std::cout << usage << shown;
    return std::nullopt;
  }
  if (line.given.count("version") > 0) {
    std::cout << program << " of tessera " << TESSERA_VERSION << "\n";
    return std::nullopt;
  }
  if (line.given.count("positional") > 0) {
    line.words = line.given["positional"].as<std::vector<std::string>>();
  }
  return line;
}

}  // namespace tessera
