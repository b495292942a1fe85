#include "kernels/base/terminal.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace tessera {
namespace {

constexpr unsigned char kContinuationMask = 0xc0;
constexpr unsigned char kContinuation = 0x80;

bool begins_character(char c) {
  return (static_cast<unsigned char>(c) & kContinuationMask) != kContinuation;
}

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

// Of the word that begins at `begin`: a blank, but for those in `code`, which may be copied.
std::size_t end_of_word(std::string_view text, std::size_t begin) {
  bool in_code = false;
  std::size_t end = begin;
  for (; end < text.size() && (in_code || text[end] != ' '); ++end) {
    if (text[end] == '`') {
      in_code = !in_code && text.find('`', end + 1) != std::string_view::npos;
    }
  }
  return end;
}

// One line, without its end.
std::string wrapped_line(std::string_view line, std::size_t width, std::size_t hang) {
  if (columns_of(line) <= width) {
    return std::string(line);
  }
  const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
  const std::string next(std::min(indent + hang, width / 2), ' ');
  std::string out(line.substr(0, indent));
  std::size_t column = indent;
  std::string_view left = line.substr(indent);
  for (bool is_first = true; !left.empty(); is_first = false) {
    const std::size_t blanks = std::min(left.find_first_not_of(' '), left.size());
    const std::size_t end = end_of_word(left, blanks);
    const std::size_t length = columns_of(left.substr(0, end));
    if (!is_first && column + length > width) {
      out += '\n' + next;
      column = next.size() + length - blanks;
      out += left.substr(blanks, end - blanks);
    } else {
      column += length;
      out += left.substr(0, end);
    }
    left.remove_prefix(end);
  }
  return out;
}

}  // namespace

std::size_t terminal_width(int descriptor) noexcept {
  const char* terminal = std::getenv("TERM");
  if (terminal != nullptr && std::string_view(terminal) == "dumb") {
    return 0;
  }
  winsize size{};
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-vararg): the system's interface
  const bool known = isatty(descriptor) == 1 && ioctl(descriptor, TIOCGWINSZ, &size) == 0;
  return known ? size.ws_col : 0;
}

bool takes_colours(int descriptor) noexcept {
  const char* refused = std::getenv("NO_COLOR");
  return (refused == nullptr || *refused == '\0') && terminal_width(descriptor) > 0;
}

std::string fitted(std::string_view text, std::size_t width) {
  constexpr unsigned char kFirstPrintable = 0x20;
  constexpr unsigned char kDelete = 0x7f;
  std::string kept;
  std::size_t columns = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (begins_character(c) && ++columns > width) {
      break;
    }
    kept += byte < kFirstPrintable || byte == kDelete ? '?' : c;
  }
  return kept;
}

std::string wrapped(std::string_view text, std::size_t width, std::size_t hang) {
  if (width == 0) {
    return std::string(text);
  }
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    out += wrapped_line(text.substr(0, end), width, hang);
    out += end < text.size() ? "\n" : "";
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

namespace {

// Where the next option of a shell's command begins, behind `begin`: " --" outside of '...' and $'...'.
std::size_t next_option(std::string_view command, std::size_t begin) {
  constexpr std::string_view kOption = " --";
  bool is_quoted = false;
  bool has_escapes = true;  // outside of '...', and in $'...'
  for (std::size_t i = 0; i < command.size(); ++i) {
    if (command[i] == '\\' && has_escapes) {
      ++i;
    } else if (command[i] == '\'') {
      is_quoted = !is_quoted;
      has_escapes = !is_quoted || (i > 0 && command[i - 1] == '$');
    } else if (i >= begin && !is_quoted && command.substr(i).starts_with(kOption)) {
      return i;
    }
  }
  return command.size();
}

// One line, without its end.
std::string message_line(std::string_view line, std::size_t width, std::size_t hang) {
  constexpr std::string_view kCommand = ": mpirun ";
  if (line.starts_with("  mpirun ") || line.starts_with("  train ")) {
    return wrapped_command(line, width, hang);
  }
  const std::size_t colon = line.find(kCommand);
  if (colon == std::string_view::npos || columns_of(line) <= width || width == 0) {
    return wrapped(line, width, hang);
  }
  std::string command(hang, ' ');
  command += line.substr(colon + 2);
  return wrapped(line.substr(0, colon + 1), width, hang) + '\n' +
         wrapped_command(command, width, hang);
}

}  // namespace

std::string for_terminal(std::string_view text, int descriptor) {
  constexpr std::size_t kHang = 2;
  return message_lines(text, terminal_width(descriptor), kHang);
}

std::string message_lines(std::string_view text, std::size_t width, std::size_t hang) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    out += message_line(text.substr(0, end), width, hang);
    out += end < text.size() ? "\n" : "";
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::string wrapped_command(std::string_view command, std::size_t width, std::size_t hang) {
  constexpr std::string_view kContinued = " \\";
  if (columns_of(command) <= width || width == 0) {
    return std::string(command);
  }
  const std::size_t indent = std::min(command.find_first_not_of(' '), command.size());
  std::string out;
  std::size_t column = 0;
  while (!command.empty()) {  // an option and its value stay together
    const std::size_t end = next_option(command, 1);
    std::string_view piece = command.substr(0, end);
    if (!out.empty() && column + columns_of(piece) + kContinued.size() > width) {
      out += fmt::format("{}\n{:{}}", kContinued, "", indent + hang);
      column = indent + hang;
      piece.remove_prefix(1);
    }
    out += piece;
    column += columns_of(piece);
    command.remove_prefix(end);
  }
  return out;
}

std::string paragraphs(std::string_view text) {
  std::string out;
  std::size_t above =
      std::string_view::npos;  // column in which the line above begins; npos: it is empty
  for (bool is_first = true; !text.empty(); is_first = false) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const std::size_t begin = line.find_first_not_of(' ');
    const bool continues = !is_first && begin == above && begin != std::string_view::npos;
    if (continues) {
      out.back() = ' ';  // the end of the line above
    }
    out += continues ? line.substr(begin) : line;
    out += '\n';
    above = begin;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::size_t help_width() noexcept {
  constexpr std::size_t kUsual = 80;
  constexpr std::size_t kLeast = 40;
  constexpr std::size_t kMost = 120;
  const std::size_t width = terminal_width(STDOUT_FILENO);
  return width == 0 ? kUsual : std::clamp(width, kLeast, kMost);
}

}  // namespace tessera
