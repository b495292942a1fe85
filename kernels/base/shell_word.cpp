#include "kernels/base/shell_word.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

namespace tessera {
namespace {

bool is_plain(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("-_./:,=+%@").find(c) != std::string_view::npos;
}

bool is_control(char c) {
  constexpr unsigned char kFirstShown = 0x20;
  constexpr unsigned char kDelete = 0x7F;
  return static_cast<unsigned char>(c) < kFirstShown || static_cast<unsigned char>(c) == kDelete;
}

std::string with_escapes(std::string_view text) {
  std::string quoted = "$'";
  for (const char c : text) {
    if (c == '\n') {
      quoted += "\\n";
    } else if (is_control(c)) {
      quoted += fmt::format("\\{:03o}", static_cast<unsigned char>(c));
    } else {
      quoted += c == '\'' || c == '\\' ? "\\" : "";
      quoted += c;
    }
  }
  return quoted + '\'';
}

}  // namespace

std::string shell_word(std::string_view text) {
  if (!text.empty() && std::all_of(text.begin(), text.end(), is_plain)) {
    return std::string(text);
  }
  if (std::any_of(text.begin(), text.end(), is_control)) {
    return with_escapes(text);
  }
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\'";  // the quote ends, one by itself, and another begins
    }
    quoted += c;
  }
  return quoted + '\'';
}

}  // namespace tessera
