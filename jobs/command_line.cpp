#include "jobs/command_line.h"

#include <iostream>

#include <fmt/format.h>

#include "kernels/base/terminal.h"

namespace tessera {

namespace po = boost::program_options;

po::options_description general_options() {
  po::options_description options = option_group("General");
  options.add_options()("help,h", "this text")("version", "the version");
  return options;
}

std::string version_line(std::string_view program) {
  return fmt::format("{} of tessera {}\n", program, TESSERA_VERSION);
}

std::optional<CommandLine> read_command_line(int argc, char** argv, std::string_view program,
                                             std::string_view usage,
                                             const po::options_description& shown,
                                             Abbreviations abbreviations) {
  po::options_description visible = shown;
  visible.add(general_options());
  po::options_description all;
  all.add(visible).add_options()("positional", po::value<std::vector<std::string>>());
  po::positional_options_description positions;
  positions.add("positional", -1);
  CommandLine line;
  line.given = read_words(words_of(argc, argv), all, positions, fmt::format("{} --help", program),
                          abbreviations);
  if (line.given.contains("help")) {
    std::cout << wrapped(paragraphs(usage), help_width(), 0) << visible;
    return std::nullopt;
  }
  if (line.given.contains("version")) {
    std::cout << version_line(program);
    return std::nullopt;
  }
  if (line.given.contains("positional")) {
    line.words = line.given["positional"].as<std::vector<std::string>>();
  }
  return line;
}

std::string text_of(const po::variables_map& given, const std::string& name) {
  return given.contains(name) ? given[name].as<std::string>() : std::string();
}

bool is_on(const po::variables_map& given, const std::string& name) {
  return given.contains(name) && parse_switch(text_of(given, name), "--" + name);
}

}  // namespace tessera
