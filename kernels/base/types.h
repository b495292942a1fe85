// The type of every count and position.
#pragma once

#include <cstdint>

namespace tessera {

/// Counts and indexes elements, rows, tokens. Signed and 64-bit everywhere, in kernels too.
using Index = std::int64_t;

}  // namespace tessera
