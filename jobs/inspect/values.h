// How parts of a checkpoint are shown, as text and as JSON.
#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>

#include "jobs/inspect/output.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/tensor_statistics.h"

namespace tessera::inspect {

[[nodiscard]] Json json_of(const ManifestInfo& info);
[[nodiscard]] Json json_of(const TensorStatistics& s);
[[nodiscard]] Json json_of(const TensorDifference& d);

/// "state of adamw: master, exp_avg, exp_avg_sq", or "weights alone".
[[nodiscard]] std::string arrays_text(const ManifestInfo& info);
[[nodiscard]] std::string number(double value);
[[nodiscard]] std::string shape_text(const Shape& shape);
/// Ranks whose shards hold part of a parameter, in order.
[[nodiscard]] std::vector<Index> owners_of(const CheckpointReader& reader, const ParamRow& param);
/// Slices follow the ranks, so owners are neighbours.
[[nodiscard]] std::string ranks_text(const std::vector<Index>& ranks);

}  // namespace tessera::inspect
