// Writing a frozen base in 4 bits (optim/quantized_params.h) into the shards of all ranks: quantised
// here, packed already, or random.
//
// Codes of a matrix depend on all of it (kernels/nf4.h), so that a rank cannot make those of its slice
// alone: blocks are divided among the ranks, of W ranks W blocks at a time, each made by one of them and
// sent to all in one exchange of shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "collectives/communicator.h"
#include "model/param_values.h"
#include "optim/quantized_params.h"

namespace tessera {

/// Bytes begin, begin + 1, ... of a packed block; beyond its end zeros. Called by several threads.
using PackedSlices = std::function<void(UnitId unit, Index begin, std::span<std::byte> bytes)>;
/// A matrix in nf4 as it is packed, whole.
using PackedMatrices = std::function<void(const PackedPart& matrix, std::span<std::byte> bytes)>;

/// Where a base comes from.
struct BaseSource {
  UnitValues values;  // of the model
  /// None: blocks are quantised from `values`, but for those that one of these two gives packed.
  PackedSlices slices = {};
  PackedMatrices matrices = {};
  /// Is given each block that is made here, whole, on the rank that made it.
  std::function<void(UnitId unit, std::span<const std::byte> packed)> look = {};
  /// None: that of `values` (content_hash), or of what is packed where they do not say it.
  std::optional<std::uint64_t> hash = {};
};

struct QuantizedBaseArgs {
  const ParamLayout& layout;  // of the model
  QuantizedParams& store;     // whose units are gathered after this
  Communicator& comm;
  Stream& stream;  // for exchanges
  DType param_values;
  int threads;
};

/// Writes this rank's shards of all units. Returns this rank's part of the hash: the hash is the sum
/// over the ranks. Collective. Throws, agreed on all ranks, what the source throws, and FormatError for
/// values that are not finite.
[[nodiscard]] std::uint64_t write_quantized(const QuantizedBaseArgs& args,
                                            const BaseSource& source);

/// Random blocks, for measurements: random codes, with scales that give matrices about the deviation of
/// fresh ones (model/initialization.h); norm gains 1, biases 0. The same on any number of ranks.
/// Keeps references.
[[nodiscard]] BaseSource random_base(const ModelConfig& config, const ParamLayout& layout,
                                     const PackedLayout& packed, std::uint64_t seed);

}  // namespace tessera
