// stdin, stdout and stderr of every program: who reads them may go away, their disk may be full,
// and they may not be there at all. The one place that knows what then happens.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

/// For the begin of main. From here on writing to a pipe or socket that nobody reads fails with
/// EPIPE, where SIGPIPE would end the process; and of descriptors 0, 1 and 2 none is free, so that
/// no file of ours gets the number that messages are written to. One that was closed fails with
/// EBADF still.
void prepare_standard_streams() noexcept;

/// Writes all of `text` to a descriptor, in one call where the system takes it so. Waits where the
/// descriptor does not block. Returns 0, or the errno of what failed; a part may be written then.
[[nodiscard]] int write_all(int descriptor, std::string_view text) noexcept;

/// The same to descriptor 1 or 2; EPIPE also where mpirun would pass it on to a pipe that nobody
/// reads any more.
[[nodiscard]] int write_to_stream(int descriptor, std::string_view text) noexcept;

/// What an errno of a failed write to them means.
[[nodiscard]] std::string output_failure(int code);

/// Flushes what std::cout and stdout hold. Throws WriteError, "cannot write to standard output:
/// CAUSE", if any of what was written to them so far was lost. That a reader has gone away
/// (`inspect RUN | head -1`) is no failure: it wants no more. True if that happened.
bool require_standard_output();

/// Exit status of a program that was cut short by that: the one a shell gives for SIGPIPE.
inline constexpr int kUnreadStatus = 141;

}  // namespace tessera
