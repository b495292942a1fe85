#include "kernels/base/terminal.h"

#include <cstdlib>

#include <sys/ioctl.h>
#include <unistd.h>

namespace tessera {

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
  constexpr unsigned char kContinuationMask = 0xc0;
  constexpr unsigned char kContinuation = 0x80;
  std::string kept;
  std::size_t columns = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & kContinuationMask) != kContinuation && ++columns > width) {
      break;
    }
    kept += byte < kFirstPrintable || byte == kDelete ? '?' : c;
  }
  return kept;
}

}  // namespace tessera
