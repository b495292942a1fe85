// Fresh weights, by global element number: the same on any number of ranks.
//
// Matrices are normal with standard deviation config.initializer_range; those that write into the
// residual stream (attention.out, mlp.down) have it divided by sqrt(2 L), so that the stream's
// variance does not grow with depth (GPT-2, Radford et al. 2019, section 2.3). Gains are 1, biases
// 0.
#pragma once

#include <cstdint>
#include <span>

#include "model/model_config.h"
#include "model/param_layout.h"

namespace tessera {

/// Fills `values` with elements [begin, begin + values.size()) of `unit`; beyond unit.count zeros
/// (padding).
void initial_values(const ModelConfig& config, const ParamLayout& layout, UnitId unit,
                    std::uint64_t seed, Index begin, std::span<float> values);

}  // namespace tessera
