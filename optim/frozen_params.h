// A ParamStore whose parameters are written once and never updated: the base beside which adapters
// are trained. Any store serves, whole copies or shards; there is no master copy of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "model/param_values.h"
#include "optim/param_store.h"

namespace tessera {

/// Values as parameters of this type are stored, each rounded once (kernels/write_params.h).
/// Requires: as many bytes as they take.
void round_params(std::span<const float> values, DType dtype, DType param_values,
                  std::span<std::byte> bytes);

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
