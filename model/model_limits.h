// No model has sizes beyond these: a larger number in a file is damage.
#pragma once

#include "kernels/base/types.h"

namespace tessera {

/// Products of two such sizes still fit in an Index.
inline constexpr Index kLargestSize = Index{1} << 30;
inline constexpr Index kLargestLayerCount = Index{1} << 16;

}  // namespace tessera
