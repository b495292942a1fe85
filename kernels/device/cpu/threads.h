// Threads of the CPU kernels of this process.
#pragma once

namespace tessera::cpu {

/// Fixes the threads that kernels of the CPU backend use from now on, OpenMP's and oneDNN's; they
/// are part of what fixes the bits. Starts them, and counts those that are there: oneDNN computes
/// wrong GEMMs, without an error, where its team is smaller than it asked for. Throws
/// ConfigError that names what keeps them away (OMP_THREAD_LIMIT, OMP_MAX_ACTIVE_LEVELS). Requires:
/// count >= 1.
void set_threads(int count);

}  // namespace tessera::cpu
