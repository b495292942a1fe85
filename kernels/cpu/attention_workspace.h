// Scratch of the CPU's attention, for kernels/attention.cpp, which answers for both backends.
#pragma once

#include <cstddef>

#include "kernels/attention.h"

namespace tessera::cpu {

/// Bytes of scratch for every thread that OpenMP would start now.
[[nodiscard]] std::size_t attention_workspace_bytes(const AttentionShape& shape);

}  // namespace tessera::cpu
