// Arguments as a shell reads them, for commands that people copy.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

/// `text` as one word of a line: as it is, in '...', or, where it has control characters, in $'...'
/// (bash, zsh, ksh and POSIX of 2024), so that a command stays in one line.
[[nodiscard]] std::string shell_word(std::string_view text);

}  // namespace tessera
