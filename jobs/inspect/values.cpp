#include "jobs/inspect/values.h"

#include <fmt/ranges.h>

#include "model/json_text.h"
#include "runtime/checkpoint/adapter_base.h"

namespace tessera::inspect {
namespace {

std::vector<std::string_view> array_names(const ManifestInfo& info) {
  std::vector<std::string_view> names;
  for (const StateArraySpec& spec : info.arrays().arrays()) {
    names.push_back(array_name(spec.array));
  }
  return names;
}

Json base_json(const ManifestInfo& info) {
  if (info.adapter_json.empty()) {
    return {};
  }
  const AdapterBase base = adapter_base(info);
  return {{"source", base.source}, {"dtype", base.dtype}, {"is_random", base.is_random}};
}

}  // namespace

std::string arrays_text(const ManifestInfo& info) {
  if (!info.optimizer) {
    return "weights alone";
  }
  return fmt::format(
      "state of {}: {}{}", optimizer_name(*info.optimizer), fmt::join(array_names(info), ", "),
      info.moments == MomentType::f32 ? std::string()
                                      : fmt::format(" (moments in {})", moment_name(info.moments)));
}

std::string shape_text(const Shape& shape) {
  std::vector<Index> extents;
  extents.reserve(static_cast<std::size_t>(shape.rank()));
  for (int axis = 0; axis < shape.rank(); ++axis) {
    extents.push_back(shape[axis]);
  }
  return fmt::format("[{}]", fmt::join(extents, ", "));
}

std::vector<Index> owners_of(const CheckpointReader& reader, const ParamRow& param) {
  std::vector<Index> ranks;
  for (const ShardRecord& shard : reader.shards()) {
    for (const UnitSlice& slice : shard.spec.slices) {
      if (slice.unit == param.unit && slice.begin < param.offset + param.count() &&
          param.offset < slice.end && slice.count() > 0) {
        ranks.push_back(shard.spec.rank);
      }
    }
  }
  return ranks;
}

std::string ranks_text(const std::vector<Index>& ranks) {
  if (ranks.empty()) {
    return "none";
  }
  return ranks.size() == 1 ? fmt::format("{}", ranks.front())
                           : fmt::format("{}-{}", ranks.front(), ranks.back());
}

Json json_of(const ManifestInfo& info) {
  const auto parsed = [](const std::string& text) {
    Json value = parse_json_line(text);
    return value.is_discarded() ? Json(text) : value;
  };
  return {{"version", info.version},
          {"save_id", info.save_id},
          {"run_id", info.run_id},
          {"parent_save_id", info.parent_save_id},
          {"step", info.step},
          {"updates", info.updates},
          {"skipped", info.skipped},
          {"world_size", info.world_size},
          {"micro_batch", info.micro_batch},
          {"sum_group", info.reduce_group},
          {"flce_chunk_rows", info.flce_chunk_rows},
          {"attention_slice", info.attention_slice},
          {"gemm_table_hash", info.gemm_table_hash},
          {"config", parsed(info.config_json)},
          {"config_hash", info.config_hash},
          {"data_hash", info.data_hash},
          {"options", parsed(info.options_json)},
          {"windows_taken", info.windows_taken},
          {"epoch", info.epoch},
          {"seed", info.seed},
          {"optimizer", info.optimizer ? optimizer_name(*info.optimizer) : "none"},
          {"moments", info.optimizer ? moment_name(info.moments) : "none"},
          {"arrays", array_names(info)},
          {"adapters", info.adapter_json.empty() ? Json() : parsed(info.adapter_json)},
          {"base_model_hash", info.base_model_hash},
          {"base", base_json(info)},
          {"nonfinite_params", info.nonfinite_params}};
}

Json json_of(const TensorStatistics& s) {
  return {{"count", s.count}, {"nonfinite", s.nonfinite}, {"min", s.min},
          {"max", s.max},     {"mean", s.mean},           {"norm", s.norm}};
}

Json json_of(const TensorDifference& d) {
  return {{"count", d.count},
          {"differing", d.differing},
          {"incomparable", d.incomparable},
          {"max_absolute", d.max_absolute},
          {"max_relative", d.max_relative},
          {"max_ulps", d.max_ulps}};
}

std::string number(double value) {
  return fmt::format("{:.6g}", value);
}

}  // namespace tessera::inspect
