// The file of --config, and the effective configuration that a run prints, which is such a file:
//
//   # a comment
//   lr = 3e-4                       # a comment too: '#' after a blank begins one
//   sample-prompt = "Chapter #1: "  # quoted: every character up to the closing quote counts
//   data = a.h5                     # an option that takes several values stands once for each
//   data = "with # and \"quotes\".h5"
//
// A value begins and ends with something other than a blank. One that begins with '"' is quoted; in
// quotes \" and \\ stand for themselves, \n and \t for newline and tab, \xHH for a byte.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// One `name = value`, without quotes.
struct ConfigEntry {
  std::string name;
  std::string value;
  int line = 0;  // from 1
};

/// Throws ConfigError naming `source` and the line: no '=', no name, a quote that is not closed,
/// words behind one, an unknown escape, or a '#' inside a value that is not quoted.
[[nodiscard]] std::vector<ConfigEntry> parse_config_text(std::string_view text,
                                                         std::string_view source);

/// `value` as it may stand behind "name = ": as it is, or quoted where it would be read otherwise.
/// Bytes that are not UTF-8, and control characters, are written as `\xHH`.
[[nodiscard]] std::string config_value(std::string_view value);
/// Values one behind the other as one text, and back: a blank between, each quoted where it must be
/// to be distinguished. `split_values` of a text that is not of `join_values` (a quote that is not
/// closed) is empty.
[[nodiscard]] std::string join_values(const std::vector<std::string>& values);
[[nodiscard]] std::vector<std::string> split_values(std::string_view text);

}  // namespace tessera
