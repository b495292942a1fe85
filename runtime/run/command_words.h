// The words of a command line, the same for every program: what a switch takes, the message for a
// word or an option that is not known. What the options mean is each program's.
//
//   --name VALUE, --name=VALUE         a value; a negative number may follow too (--seed -1)
//   --name, --name true, --name=false  a switch
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <boost/program_options.hpp>

#include "kernels/base/quantity.h"

namespace tessera {

/// What a switch is shown to take.
inline constexpr const char* kSwitchArgument = "true|false";
inline constexpr const char* kSwitchOrSizeArgument = "true|false|auto|BYTES";

/// Options that --help shows under this name (none: without one), as wide as help_width().
[[nodiscard]] boost::program_options::options_description option_group(
    const std::string& name = {});

/// "true" or "false". Throws ConfigError naming `what`.
[[nodiscard]] bool parse_switch(std::string_view text, std::string_view what);

/// The value of a switch `--name`, without a target and with one, which is false where the switch
/// is not given.
[[nodiscard]] boost::program_options::typed_value<std::string>* switch_value();
[[nodiscard]] boost::program_options::typed_value<std::string>* switch_value(bool& target,
                                                                             const char* name);

/// The value of a switch that takes "auto" and sizes, too.
[[nodiscard]] boost::program_options::typed_value<std::string>* switch_or_size_value();

/// The value of an option `--name` that is a number in this range; what `target` holds is the
/// default, if it is in the range. ConfigErrors name the option and the range.
[[nodiscard]] boost::program_options::typed_value<std::string>* count_value(Index& target,
                                                                            CountRange range,
                                                                            const char* name);
[[nodiscard]] boost::program_options::typed_value<std::string>* count_value(int& target,
                                                                            CountRange range,
                                                                            const char* name);
[[nodiscard]] boost::program_options::typed_value<std::string>* real_value(double& target,
                                                                           RealRange range,
                                                                           const char* name);

/// "; did you mean --lr?": options of `known` (without dashes) whose names are near, or that other
/// frameworks call so. Empty where there is none.
[[nodiscard]] std::string suggestion(std::string_view unknown,
                                     const std::vector<std::string>& known);
/// A name of another framework and the names that it may have here, for tests.
struct ForeignName {
  std::string_view theirs;
  std::vector<std::string_view> ours;
};
[[nodiscard]] const std::vector<ForeignName>& foreign_names();

/// Whether an option may be abbreviated.
enum class Abbreviations : std::uint8_t { refused, taken };

/// What boost::program_options makes of `arguments`. `help`, like "train --help", is where a
/// refusal sends its reader. Throws ConfigError that names the word: an option that is not known,
/// lacks its value or stands twice; a word without an option before it where `positions` takes
/// none.
[[nodiscard]] boost::program_options::variables_map read_words(
    const std::vector<std::string>& arguments,
    const boost::program_options::options_description& options,
    const boost::program_options::positional_options_description& positions, std::string_view help,
    Abbreviations abbreviations);
/// The same of main's arguments.
[[nodiscard]] std::vector<std::string> words_of(int argc, const char* const* argv);

}  // namespace tessera
