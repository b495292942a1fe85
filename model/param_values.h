// A model's parameters as f32 numbers from wherever they are read, and the hash that names them: the same
// on any number of ranks and for any kind of file.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "model/param_layout.h"

namespace tessera {

/// Fills elements begin, begin + 1, ... of a unit; called by several threads where there are some.
using UnitValues = std::function<void(UnitId unit, Index begin, std::span<float> values)>;

/// What the content hash of a model is a sum of, modulo 2^64: the hashes of blocks of this many
/// elements of each unit, the last one filled up with zeros. The same whoever hashes which block.
inline constexpr Index kHashedElements = 1024;
/// Of the blocks of a unit that `values`, its elements begin, begin + 1, ..., have elements of.
/// Requires: begin is a multiple of kHashedElements.
[[nodiscard]] std::uint64_t hash_of_blocks(const ParamUnit& unit, UnitId id, Index begin,
                                           std::span<const float> values);
/// Of all units, read from one place.
[[nodiscard]] std::uint64_t content_hash(const ParamLayout& layout, const UnitValues& values,
                                         int threads);

}  // namespace tessera
