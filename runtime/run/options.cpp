#include "runtime/run/options.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <sstream>

#include <boost/program_options.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/base/error.h"
#include "kernels/base/input_file.h"
#include "kernels/base/log.h"
#include "kernels/base/quantity.h"
#include "kernels/base/terminal.h"
#include "runtime/run/command_words.h"
#include "runtime/run/config_file.h"
#include "runtime/run/option_checks.h"
#include "runtime/run/option_table.h"
#include "runtime/run/run_length.h"

namespace tessera {
namespace {

namespace po = boost::program_options;

// "help text (default 4; 1 to 1024)"
std::string help_of(const OptionRow& row) {
  std::vector<std::string> notes;
  if (!row.standard.empty()) {
    notes.push_back(fmt::format("default {}", row.standard));
  }
  if (!row.setting.range.empty()) {
    notes.push_back(row.setting.range);
  }
  return notes.empty() ? row.help : fmt::format("{} ({})", row.help, fmt::join(notes, "; "));
}

po::options_description described() {
  po::options_description all = option_group();
  po::options_description general = option_group("General");
  general.add_options()("help,h", "this text")("version", "version and build")(
      "config", po::value<std::string>()->value_name("FILE"),
      "file of `name = value` lines, as OUT/start.txt of a run; the command line wins. '#' "
      "after a blank begins a comment; a value that holds '#', or begins or ends with a blank, "
      "stands in \"quotes\", with \\\" and \\\\ for those characters");
  all.add(general);
  std::vector<std::pair<std::string, po::options_description>> groups;
  for (const OptionRow& row : option_table()) {
    auto place = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& each) { return each.first == row.group; });
    if (place == groups.end()) {
      groups.emplace_back(row.group, option_group(row.group));
      place = std::prev(groups.end());
    }
    po::options_description& group = place->second;
    const std::string help = help_of(row);
    if (row.form == OptionForm::list) {
      group.add_options()(
          row.name.c_str(),
          po::value<std::vector<std::string>>()->multitoken()->composing()->value_name(
              row.argument),
          help.c_str());
    } else if (row.form == OptionForm::repeated) {
      group.add_options()(
          row.name.c_str(),
          po::value<std::vector<std::string>>()->composing()->value_name(row.argument),
          help.c_str());
    } else if (row.form == OptionForm::flag) {
      group.add_options()(row.name.c_str(), switch_value(), help.c_str());
    } else if (row.form == OptionForm::flag_or_size) {
      group.add_options()(row.name.c_str(), switch_or_size_value(), help.c_str());
    } else {
      group.add_options()(row.name.c_str(), po::value<std::string>()->value_name(row.argument),
                          help.c_str());
    }
  }
  for (auto& [name, group] : groups) {
    all.add(group);
  }
  return all;
}

// What was given to each option, by its name. An option that is not given is not there.
using GivenValues = std::map<std::string, std::vector<std::string>, std::less<>>;
using Notes = std::vector<std::string>;

// The name that an option has now; of an old one it adds a note, once.
std::string noted_name(const std::string& name, Notes& notes) {
  const std::string note = old_name_note(name);
  if (!note.empty() && std::find(notes.begin(), notes.end(), note) == notes.end()) {
    notes.push_back(note);
  }
  return current_name(name);
}

// The words of a command line with current names in the place of old ones.
std::vector<std::string> with_current_names(std::vector<std::string> words, Notes& notes) {
  constexpr std::string_view kDashes = "--";
  for (std::string& word : words) {
    if (word.starts_with(kDashes)) {
      const std::size_t end = std::min(word.find('='), word.size());
      word = fmt::format("--{}{}",
                         noted_name(word.substr(kDashes.size(), end - kDashes.size()), notes),
                         word.substr(end));
    }
  }
  return words;
}

GivenValues given_on_command_line(const po::variables_map& values) {
  GivenValues given;
  for (const OptionRow& row : option_table()) {
    if (const auto found = values.find(row.name); found != values.end()) {
      given[row.name] = takes_several(row.form)
                            ? found->second.as<std::vector<std::string>>()
                            : std::vector<std::string>{found->second.as<std::string>()};
    }
  }
  return given;
}

// Adds the value of an option that is given outside the command line. `where` is for messages.
void add_value(GivenValues& given, const std::string& given_name, const std::string& value,
               const std::string& where, Notes& notes) {
  const std::string name = noted_name(given_name, notes);
  const OptionRow* row = find_option(name);
  if (row == nullptr) {
    throw ConfigError(
        fmt::format("{}: there is no option {}{} (train --help lists them)", where, name,
                    name.starts_with('-') ? "; names stand here without dashes: write lr = 1e-3"
                                          : suggestion(name, option_names())),
        TESSERA_HERE);
  }
  std::vector<std::string>& values = given[name];
  if (!values.empty() && !takes_several(row->form)) {
    throw ConfigError(fmt::format("{}: {} stands there a second time", where, name), TESSERA_HERE);
  }
  values.push_back(value);
}

GivenValues read_config_file(const std::string& file, Notes& notes) {
  if (std::error_code error; std::filesystem::exists(file, error) || error) {
    require_readable("--config", file, "a file of `name = value` lines");
  }
  if (const std::string failure = unreadable(file); !failure.empty()) {
    throw ConfigError(fmt::format("--config {}: cannot read this file: {}", file, failure),
                      TESSERA_HERE);
  }
  std::ifstream in(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::string source = "--config " + file;
  GivenValues given;
  for (const ConfigEntry& entry : parse_config_text(text, source)) {
    add_value(given, entry.name, entry.value, fmt::format("{} line {}", source, entry.line), notes);
  }
  return given;
}

// The values of an option as they are given, else its default.
std::vector<std::string> texts_of(const OptionRow& row, const GivenValues& given) {
  const auto found = given.find(row.name);
  if (found == given.end()) {
    return takes_several(row.form) ? std::vector<std::string>{}
                                   : std::vector<std::string>{row.standard};
  }
  for (const std::string& text : found->second) {
    if (text.empty()) {
      throw ConfigError(fmt::format("--{} is empty", row.name), TESSERA_HERE);
    }
  }
  return found->second;
}

// What ranks compare: two ways to write one number are one value.
std::string agreed_text(const OptionRow& row, const RunConfig& config, const std::string& text) {
  const std::string number = row.setting.number ? row.setting.number(config) : std::string();
  constexpr std::string_view kBeginsNumber = "0123456789.+-";
  const bool is_number = !text.empty() && kBeginsNumber.find(text.front()) != std::string::npos;
  return is_number && !number.empty() ? number : text;
}

// A configuration of these values, and of the defaults.
RunConfig config_of(const GivenValues& given) {
  RunConfig config;
  std::map<std::string_view, std::vector<std::string>> texts;
  for (const OptionRow& row : option_table()) {
    texts[row.name] = texts_of(row, given);
    for (const std::string& text : texts[row.name]) {
      row.setting.set(config, text, "--" + row.name);
    }
  }
  for (const OptionRow& row : option_table()) {
    if (given.contains(row.name)) {
      config.texts.given.push_back(row.name);
    }
    const bool is_set = given.contains(row.name) &&
                        (row.form != OptionForm::flag || differs_from_default(row, config));
    if (row.need.is_strict && is_set && !is_used(row, config)) {
      throw ConfigError(fmt::format("--{} {}", row.name, row.need.text), TESSERA_HERE);
    }
    const bool shapes =
        row.role == OptionRole::shapes && (!row.need.is_strict || is_used(row, config));
    const std::string joined = join_values(texts[row.name]);
    const std::string text = takes_several(row.form) ? joined : texts[row.name].front();
    if (shapes) {
      config.texts.effective.emplace_back(row.name, text);
    }
    if (row.role != OptionRole::local) {
      config.texts.agreed.emplace_back(row.name, agreed_text(row, config, joined));
    }
    if (shapes || differs_from_default(row, config)) {
      config.texts.printed.emplace_back(row.name, text);
    }
  }
  config = with_steps(std::move(config), 0);
  check_together(config);
  return config;
}

// Of the options that say how long a run is the command line's wins, as it does of one option.
void leave_out_other_lengths(const GivenValues& on_command_line, GivenValues& in_file) {
  constexpr std::array<std::string_view, 3> kLengths = {"steps", "epochs", "tokens"};
  if (std::any_of(kLengths.begin(), kLengths.end(),
                  [&](std::string_view name) { return on_command_line.contains(name); })) {
    std::erase_if(in_file, [&](const auto& entry) {
      return std::find(kLengths.begin(), kLengths.end(), entry.first) != kLengths.end();
    });
  }
}

}  // namespace

ParsedOptions parse_options(int argc, const char* const* argv) {
  Notes notes;
  const po::variables_map values =
      read_words(with_current_names(words_of(argc, argv), notes), described(), {}, "train --help",
                 Abbreviations::refused);
  ParsedOptions parsed;
  if (values.contains("help")) {
    parsed.action = OptionsAction::help;
    return parsed;
  }
  if (values.contains("version")) {
    parsed.action = OptionsAction::version;
    return parsed;
  }
  GivenValues given = given_on_command_line(values);
  if (values.contains("config")) {
    GivenValues in_file = read_config_file(values["config"].as<std::string>(), notes);
    leave_out_other_lengths(given, in_file);
    given.merge(in_file);
  }
  parsed.config = config_of(given);
  parsed.config.texts.notes = notes;
  if (!parsed.config.plan.print) {
    check_run(parsed.config);
  }
  return parsed;
}

RunConfig config_of_settings(std::span<const std::string> settings, const std::string& source) {
  GivenValues given;
  Notes notes;
  for (const std::string& setting : settings) {
    const std::size_t equals = setting.find('=');
    const std::string name = setting.substr(0, equals);
    const OptionRow* row = find_option(current_name(name));
    if (equals == std::string::npos && row != nullptr && row->form != OptionForm::flag &&
        row->form != OptionForm::flag_or_size) {
      throw ConfigError(
          fmt::format("{} {}: give its value, as in {}={}", source, name, name, row->argument),
          TESSERA_HERE);
    }
    add_value(given, name, equals == std::string::npos ? "true" : setting.substr(equals + 1),
              source, notes);
  }
  RunConfig config = config_of(given);
  config.texts.notes = notes;
  return config;
}

double start_seconds(int argc, const char* const* argv) {
  constexpr double kLeast = 10;
  try {
    const ParsedOptions parsed = parse_options(argc, argv);
    if (parsed.action == OptionsAction::run) {
      return std::max(parsed.config.launch.timeout_seconds, kLeast);
    }
  } catch (const Error&) {  // refused in due course, by all ranks together
  }
  return config_of({}).launch.timeout_seconds;
}

void warn_of_old_names(const RunConfig& config) {
  for (const std::string& note : config.texts.notes) {
    log_line(LogLevel::warning, note);
  }
}

std::string options_help() {
  std::string text =
      "Usage: mpirun -np RANKS train --model PRESET|config.json --data FILE... --out FOLDER "
      "[options]\n\nTrains a language model on all ranks together. Sizes take suffixes (64MiB, "
      "5GB).\n";
  std::ostringstream out;
  out << described();
  const std::string signals =
      "\nSignals: USR1, USR2, TERM, INT, HUP (unless ignored) and XCPU save and exit with 85. "
      "Ctrl-C on Open MPI's mpirun kills the ranks a second later, saved or not: to save and "
      "stop, send USR1 to mpirun (kill -USR1 PID), or touch the --stop-file.\n";
  return wrapped(text, help_width(), 0) + out.str() + wrapped(signals, help_width(), 0);
}

std::string printed_text(const RunConfig& config) {
  std::string lines;
  for (const auto& [name, text] : config.texts.printed) {
    const bool is_list = takes_several(find_option(name)->form);
    for (const std::string& value : is_list ? split_values(text) : std::vector<std::string>{text}) {
      lines += value.empty() ? "" : fmt::format("{} = {}\n", name, config_value(value));
    }
  }
  return lines;
}

}  // namespace tessera
