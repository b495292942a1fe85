// A ParamStore whose parameters are written once and never updated: the base beside which adapters
// are trained. Any store serves, whole copies or shards; there is no master copy of it.
#pragma once

#include <cstdint>

#include "model/param_values.h"
#include "optim/param_store.h"

namespace tessera {

struct FrozenParamsArgs {
  const ParamLayout& layout;
  ParamStore& store;  // whose units are gathered after this
  Device device;
  int rank;
  int world_size;
  DType param_values;  // PrecisionPolicy::param_values
  int threads;
};

/// Writes this rank's shards of all units, each value rounded once as parameters are
/// (kernels/write_params.h). Returns this rank's part of the content hash: the hash is the sum over
/// the ranks. Throws what `values` throws.
[[nodiscard]] std::uint64_t write_frozen(const FrozenParamsArgs& args, const UnitValues& values);

}  // namespace tessera
