// Text that a model wrote, for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

/// The text for a terminal: control characters but newline and tab become '?', so do bytes that are
/// not UTF-8.
[[nodiscard]] std::string terminal_text(std::string_view text);

}  // namespace tessera
