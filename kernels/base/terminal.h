// What a stream of this process is connected to: a terminal that a person looks at, or a file, a
// pipe, or the pseudo-terminal that mpirun gives its ranks (it has no width: what is written there
// continues to mpirun's own output, whatever that is).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera {

/// Columns of the terminal behind the descriptor; 0 where there is none, or one that takes no
/// control codes (TERM=dumb). Asked anew at every call, as windows change.
[[nodiscard]] std::size_t terminal_width(int descriptor) noexcept;

/// A terminal, and NO_COLOR (https://no-color.org) is unset or empty.
[[nodiscard]] bool takes_colours(int descriptor) noexcept;

/// The first `width` characters of UTF-8 `text`, control characters replaced by '?'. Characters
/// count one column each.
[[nodiscard]] std::string fitted(std::string_view text, std::size_t width);

/// `text` with its lines broken at blanks, but those between ` and `, so that none is longer than `width` columns where a blank
/// allows it; what continues a line begins under it, `hang` columns further in. 0: as it is.
[[nodiscard]] std::string wrapped(std::string_view text, std::size_t width, std::size_t hang);

/// `text` for what the descriptor is: as message_lines breaks it at the width of a terminal; as it is where
/// there is none, so that a message of a log is one line.
[[nodiscard]] std::string for_terminal(std::string_view text, int descriptor);

/// `text` as wrapped has it, but for commands: a line that is one ("  mpirun ...", "  train ...") is broken by
/// wrapped_command, and one behind a message (": mpirun ...") has lines of its own. Width 0: as it is.
[[nodiscard]] std::string message_lines(std::string_view text, std::size_t width, std::size_t hang);

/// A command of a shell, broken before its options with a backslash, so that it may be copied.
[[nodiscard]] std::string wrapped_command(std::string_view command, std::size_t width,
                                          std::size_t hang);

/// The lines of each paragraph as one line, for wrapped to break: a line belongs to the one above if both begin in
/// the same column.
[[nodiscard]] std::string paragraphs(std::string_view text);

/// Columns of what --help prints: the terminal's on stdout, not above 120; 80 elsewhere.
[[nodiscard]] std::size_t help_width() noexcept;

/// Select Graphic Rendition codes, for where takes_colours says so.
inline constexpr std::string_view kRed = "\033[31m";
inline constexpr std::string_view kYellow = "\033[33m";
inline constexpr std::string_view kNormal = "\033[0m";
/// To the line's begin, and the line is empty.
inline constexpr std::string_view kClearLine = "\r\033[K";

}  // namespace tessera
