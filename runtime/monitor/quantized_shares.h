// What of the values that a step quantised to 8 bits was lost, for metrics.jsonl.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "model/quantized_blocks.h"

namespace tessera {

/// By kind of layer, then by operand: shares, 0 to 1, of `saturated` and `underflowed` values; null
/// of operands without values.
[[nodiscard]] nlohmann::ordered_json quantized_shares(const QuantizeCounts& counts);

}  // namespace tessera
