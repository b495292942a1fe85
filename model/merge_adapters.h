// A model with its adapters added to its weights: W + s B A, in f32.
#pragma once

#include "model/adapter_layout.h"
#include "model/model_config.h"
#include "model/param_values.h"

namespace tessera {

/// The merged model's parameters, in the units of its ParamLayout: of each element the product of B's
/// row and A's column is summed in f32 in the order of the ranks, multiplied by the scale and added;
/// embeddings that were trained take the place of the base's. Keeps references to `config` and
/// `adapters`. Safe from several threads where `base` and `values` (of the adapters' units) are.
[[nodiscard]] UnitValues merged_values(const ModelConfig& config, const AdapterLayout& adapters,
                                       UnitValues base, UnitValues values);

}  // namespace tessera
