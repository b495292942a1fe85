// One line a message, to stderr, with time, rank and host. The only global of the project beside
// progress.h: where a process writes what it has to say.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

enum class LogLevel : std::uint8_t { verbose, info, warning, error };

/// Set once by run_job. Messages below `lowest` are dropped; info lines of ranks other than 0 too.
void set_log_identity(int rank, int world_size, std::string host, LogLevel lowest);
[[nodiscard]] LogLevel log_level() noexcept;
/// Thread-safe. Rank 0's info lines are plain text; warnings and errors carry time, rank and host.
void log_line(LogLevel level, std::string_view message);

}  // namespace tessera
