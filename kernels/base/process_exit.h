// The end of a process that hangs: one thread ends it, and the others stay out of its way.
#pragma once

#include <chrono>
#include <functional>

namespace tessera {

/// Ends the process with _exit, whatever MPI, the driver or other threads do. `on_exit`, each part
/// of which may block (a full pipe, a lock, the driver), has a thread of its own and `timeout`.
/// The first call of a process counts; a later one stays for ever.
[[noreturn]] void end_process(int exit_status, std::chrono::milliseconds timeout,
                              const std::function<void()>& on_exit) noexcept;

/// Returns unless end_process was called; then never. It stands where a wait for the device or for
/// other ranks returns or fails: a wait that the last act aborts leaves neither a result to go on
/// with nor an error of its own.
void stay_if_ending() noexcept;

}  // namespace tessera
