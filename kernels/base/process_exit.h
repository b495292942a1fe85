// The exit of a process that hangs: one thread exits, and the others park.
#pragma once

#include <chrono>
#include <functional>

namespace tessera {

/// Ends the process with _exit, whatever MPI, the driver or other threads do. `on_exit`, each part
/// of which may block (a full pipe, a lock, the driver), has a thread of its own and `timeout`.
/// The first call of a process counts; a later one parks its thread.
[[noreturn]] void exit_process(int exit_status, std::chrono::milliseconds timeout,
                               const std::function<void()>& on_exit) noexcept;

/// Returns unless exit_process was called; then the thread parks. It stands where a wait for the
/// device or for other ranks returns or fails: a wait that `on_exit` aborts leaves neither a result
/// to continue with nor an error of its own.
void park_if_exiting() noexcept;

}  // namespace tessera
