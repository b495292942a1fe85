#include "runtime/checkpoint/manifest_check.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "model/adapter_layout.h"
#include "model/json_text.h"
#include "model/model_config.h"
#include "model/param_layout.h"

namespace tessera {
namespace {

// Bounds that no run reaches, far below what overflows in sums and products of such numbers.
constexpr Index kMostSteps = Index{1} << 40U;
constexpr Index kMostWindowsOfStep = Index{1} << 31U;
constexpr Index kMostWindows = Index{1} << 53U;
constexpr Index kMostOfCount = (Index{1} << 31U) - 1;  // sequences, micro-batches
constexpr Index kMostRows = Index{1} << 40U;
constexpr Index kMostBytes = Index{1} << 50U;
constexpr Index kMostRanks = 100000;  // five digits in a shard's name
constexpr std::size_t kLongestWord = 128;

struct Field {
  std::string_view name;
  Index value;
  Index low;
  Index high;
};

// Identities and hashes: nothing that would not be shown as it is.
void require_word(const std::string& name, std::string_view field, const std::string& text) {
  const bool is_plain = std::all_of(
      text.begin(), text.end(), [](char character) { return character > ' ' && character <= '~'; });
  if (!is_plain || text.size() > kLongestWord) {
    refuse_manifest(name,
                    fmt::format("{} must be one word of at most {} ASCII characters, or empty",
                                field, kLongestWord),
                    TESSERA_HERE);
  }
}

void require_json(const std::string& name, std::string_view field, const std::string& text) {
  if (!text.empty() && !parse_json_line(text).is_object()) {
    refuse_manifest(name, fmt::format("{} must be a JSON object, or empty", field), TESSERA_HERE);
  }
}

void require_same(const std::string& name, const std::string& place, std::string_view value,
                  std::string_view expected) {
  if (value != expected) {
    refuse_manifest(name,
                    fmt::format("{} is '{}'; it must be '{}' by config_json and world_size", place,
                                value, expected),
                    TESSERA_HERE);
  }
}

void require_same(const std::string& name, const std::string& place, Index value, Index expected) {
  if (value != expected) {
    refuse_manifest(name,
                    fmt::format("{} is {}; it must be {} by config_json and world_size", place,
                                value, expected),
                    TESSERA_HERE);
  }
}

ParamTable table_of(const ManifestInfo& info, const std::string& name) {
  try {
    const ModelConfig config = parse_config_json(info.config_json, "config_json");
    if (!info.adapter_json.empty()) {
      return param_table(
          AdapterLayout(config, parse_adapter_json(info.adapter_json, "adapter_json")).params());
    }
    return param_table(ParamLayout(config));
  } catch (const ConfigError& error) {
    refuse_manifest(name, error.message(), TESSERA_HERE);
  } catch (const FormatError& error) {
    refuse_manifest(name, error.message(), TESSERA_HERE);
  }
}

}  // namespace

void refuse_manifest(const std::string& name, std::string_view what, SourceLocation where) {
  throw FormatError(fmt::format("{}: {}", name, what), where);
}

void require_range(const std::string& name, std::string_view field, Index value, Index low,
                   Index high) {
  if (value < low || value > high) {
    refuse_manifest(
        name,
        low == high ? fmt::format("{} is {}; it must be {}", field, value, low)
                    : fmt::format("{} is {}; it must be from {} to {}", field, value, low, high),
        TESSERA_HERE);
  }
}

void require_known_version(const std::string& name, Index version) {
  if (version < kOldestVersion || version > kCheckpointVersion) {
    refuse_manifest(
        name,
        fmt::format("checkpoint version {} is not known; this program reads versions {} to {}",
                    version, kOldestVersion, kCheckpointVersion),
        TESSERA_HERE);
  }
}

void check_info(const ManifestInfo& info, Index elements, const std::string& name) {
  // weights alone were never trained
  const Index most_steps = info.optimizer ? kMostSteps : 0;
  require_range(name, "step", info.step, 0, most_steps);
  const Index most_sequences =
      info.step > kMostWindows / kMostWindowsOfStep ? kMostWindows : info.step * kMostWindowsOfStep;
  // In this order: the bounds of one are made of those before it.
  const std::array fields = {
      Field{"updates", info.updates, 0, info.step},
      Field{"skipped", info.skipped, 0, std::max<Index>(0, info.step - info.updates)},
      Field{"world_size", info.world_size, 1, kMostRanks},
      Field{"micro_batch", info.micro_batch, 0, kMostOfCount},
      Field{"sum_group", info.reduce_group, 0, kMostOfCount},
      Field{"flce_chunk_rows", info.flce_chunk_rows, 0, kMostRows},
      Field{"attention_slice", info.attention_slice, 0, kMostBytes},
      Field{"windows_taken", info.windows_taken, info.step, most_sequences},
      Field{"epoch", info.epoch, 0, info.windows_taken},
      Field{"nonfinite_params", info.nonfinite_params, 0, elements}};
  for (const Field& field : fields) {
    require_range(name, field.name, field.value, field.low, field.high);
  }
  require_word(name, "save_id", info.save_id);
  require_word(name, "run_id", info.run_id);
  require_word(name, "parent_save_id", info.parent_save_id);
  require_word(name, "gemm_table_hash", info.gemm_table_hash);
  require_word(name, "config_hash", info.config_hash);
  require_word(name, "data_hash", info.data_hash);
  require_json(name, "config_json", info.config_json);
  require_json(name, "options_json", info.options_json);
  require_json(name, "start_json", info.start_json);
  require_json(name, "adapter_json", info.adapter_json);
  require_word(name, "base_model_hash", info.base_model_hash);
}

void check_table(const ParamTable& table, const ManifestInfo& info, const std::string& name) {
  if (info.config_json.empty() && info.adapter_json.empty()) {
    return;
  }
  const ParamTable expected = table_of(info, name);
  for (std::size_t i = 0; i < std::min(table.params.size(), expected.params.size()); ++i) {
    const ParamRow& row = table.params[i];
    const ParamRow& model = expected.params[i];
    const auto place = [i](std::string_view field) {
      return fmt::format("{} of row {} of /table", field, i);
    };
    require_same(name, place("name"), row.name, model.name);
    require_same(name, place("unit"), row.unit, model.unit);
    require_same(name, place("alias_of"), row.alias_of, model.alias_of);
    require_same(name, place("offset"), row.offset, model.offset);
    require_same(name, place("count"), row.count(), model.count());
    require_same(name, place("ndim"), Index{row.shape.rank()}, Index{model.shape.rank()});
    for (int axis = 0; axis < row.shape.rank(); ++axis) {
      require_same(name, place("shape"), row.shape[axis], model.shape[axis]);
    }
  }
  require_same(name, "number of rows of /table", std::ssize(table.params),
               std::ssize(expected.params));
}

void check_slices(std::span<const ShardRecord> shards, const ParamTable& table,
                  const std::string& name) {
  for (const ShardRecord& shard : shards) {
    const ShardSpec expected = shard_spec(table.units, shard.spec.rank, shard.spec.world_size);
    require_same(name, fmt::format("number of /slices of rank {}", shard.spec.rank),
                 std::ssize(shard.spec.slices), std::ssize(expected.slices));
    for (std::size_t i = 0; i < expected.slices.size(); ++i) {
      const UnitSlice& slice = shard.spec.slices[i];
      const UnitSlice& cut = expected.slices[i];
      const auto place = [&](std::string_view field) {
        return fmt::format("{} of {} of rank {} in /slices", field, cut.unit, shard.spec.rank);
      };
      require_same(name, place("unit"), slice.unit, cut.unit);
      require_same(name, place("begin"), slice.begin, cut.begin);
      require_same(name, place("end"), slice.end, cut.end);
      require_same(name, place("offset"), slice.offset, cut.offset);
    }
  }
}

}  // namespace tessera
