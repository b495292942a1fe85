// The upper halves of a thread's vector registers. A library that leaves values in them (by AVX,
// without vzeroupper) makes the SSE instructions behind it wait for each other: the normal
// distribution of random.h then takes ten times as long (Intel 64 and IA-32 Architectures
// Optimization Reference Manual, "Mixing Intel AVX and SSE code"). New threads inherit them.
#pragma once

#include <optional>

namespace tessera {

/// Clears them for the calling thread, where its processor has them; some cycles.
void clear_upper_vector_registers() noexcept;

/// Whether the calling thread has values in them; nullopt where the processor does not tell.
[[nodiscard]] std::optional<bool> upper_vector_registers_in_use() noexcept;

}  // namespace tessera
