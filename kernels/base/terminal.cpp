#include "kernels/base/terminal.h"

#include <algorithm>
#include <cstdlib>

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
    const std::size_t end = std::min(left.find(' ', blanks), left.size());
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

std::size_t help_width() noexcept {
  constexpr std::size_t kUsual = 80;
  constexpr std::size_t kLeast = 40;
  constexpr std::size_t kMost = 120;
  const std::size_t width = terminal_width(STDOUT_FILENO);
  return width == 0 ? kUsual : std::clamp(width, kLeast, kMost);
}

}  // namespace tessera
