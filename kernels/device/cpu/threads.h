// Threads of the CPU kernels of this process.
#pragma once

namespace tessera::cpu {

/// Fixes the threads that kernels of the CPU backend use from now on, OpenMP's and oneDNN's; they
/// are part of what fixes the bits. Requires: count >= 1.
void set_threads(int count);

}  // namespace tessera::cpu
