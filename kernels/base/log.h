// One line a message, to stderr, with time, rank and host; and the line at the bottom of a terminal
// that says how far a run is, which messages must not tear. The only global of the project beside
// progress.h: where a process writes what it has to say.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace tessera {

enum class LogLevel : std::uint8_t { verbose, info, warning, error };

[[nodiscard]] const char* level_name(LogLevel level) noexcept;

/// Set once by run_job. Messages below `lowest` are dropped; info lines of ranks other than 0 too.
void set_log_identity(int rank, int world_size, std::string host, LogLevel lowest);
/// Thread-safe. Rank 0's info lines are plain text; warnings and errors carry time, rank and host,
/// and a colour on a terminal (kernels/base/terminal.h).
void log_line(LogLevel level, std::string_view message);

/// `listener` is called with every warning and error of this process, after it was written, on the
/// thread that says it. It stays until another replaces it; empty: nobody listens.
void set_log_listener(std::function<void(LogLevel, std::string_view)> listener);

/// Writes lines for people to stdout, at once. A stdout that takes nothing does not end the run: it
/// is reported once, in a warning. Programs whose output is their result use std::cout, and end
/// with require_standard_output (standard_streams.h).
void say_text(std::string_view text);

/// Writes `text` over the last line of the terminal that the descriptor, stdout's or stderr's, is.
/// Messages go above it. `text` fits the width; colours in it are its own. Requires:
/// terminal_width(descriptor) > 0.
void show_status(int descriptor, std::string text);
/// What was shown last stays, and the next output begins on a line of its own.
void end_status();
/// What was shown last is removed.
void clear_status();

}  // namespace tessera
