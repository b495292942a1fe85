#include "jobs/inspect/describe.h"

#include <iostream>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "jobs/inspect/steps.h"
#include "jobs/inspect/values.h"
#include "jobs/program.h"
#include "model/adapter_config.h"
#include "runtime/checkpoint/adapter_base.h"

namespace tessera::inspect {
namespace {

constexpr std::size_t kRangesOfUnit = 8;  // ranks whose ranges are printed; --json has all

std::string or_dash(const std::string& text) {
  return text.empty() ? "-" : text;
}

void describe_shards(const CheckpointReader& reader, Output& out) {
  TextTable table({"shard", "bytes", "elements", "not finite"});
  out.document["shards"] = Json::array();
  for (const ShardRecord& shard : reader.shards()) {
    Json slices = Json::array();
    for (const UnitSlice& slice : shard.spec.slices) {
      slices.push_back({{"unit", slice.unit},
                        {"begin", slice.begin},
                        {"end", slice.end},
                        {"offset", slice.offset}});
    }
    const Index nonfinite =
        std::accumulate(shard.nonfinite.begin(), shard.nonfinite.end(), Index{0});
    out.document["shards"].push_back({{"file", shard.file},
                                      {"rank", shard.spec.rank},
                                      {"bytes", shard.file_bytes},
                                      {"elements", shard.spec.count()},
                                      {"nonfinite", nonfinite},
                                      {"slices", slices}});
    table.add({shard.file, fmt::format("{}", shard.file_bytes),
               fmt::format("{}", shard.spec.count()), fmt::format("{}", nonfinite)});
  }
  if (out.is_text()) {
    std::cout << '\n';
    table.print();
  }
}

void describe_units(const CheckpointReader& reader, const Output& out) {
  if (!out.is_text()) {
    return;  // JSON has the same with the shards
  }
  TextTable table({"unit", "elements", "of each rank"});
  for (const UnitRow& unit : reader.table().units) {
    std::vector<std::string> ranges;
    for (const ShardRecord& shard : reader.shards()) {
      for (const UnitSlice& slice : shard.spec.slices) {
        if (slice.unit == unit.name && slice.count() > 0) {
          ranges.push_back(fmt::format("{}: [{}, {})", shard.spec.rank, slice.begin, slice.end));
        }
      }
    }
    if (ranges.size() > kRangesOfUnit) {
      const std::string rest = fmt::format("and {} more", ranges.size() - kRangesOfUnit);
      ranges.resize(kRangesOfUnit);
      ranges.push_back(rest);
    }
    table.add(
        {unit.name, fmt::format("{}", unit.count), fmt::format("{}", fmt::join(ranges, "  "))});
  }
  std::cout << '\n';
  table.print();
}

void describe_params(const CheckpointReader& reader, Output& out) {
  TextTable table({"parameter", "shape", "unit", "offset", "elements", "ranks"});
  out.document["table"] = Json::array();
  for (const ParamRow& param : reader.table().params) {
    const std::vector<Index> owners = owners_of(reader, param);
    Json shape = Json::array();
    for (int axis = 0; axis < param.shape.rank(); ++axis) {
      shape.push_back(param.shape[axis]);
    }
    out.document["table"].push_back({{"name", param.name},
                                     {"dtype", "f32"},
                                     {"shape", shape},
                                     {"unit", param.unit},
                                     {"offset", param.offset},
                                     {"count", param.count()},
                                     {"alias_of", param.alias_of},
                                     {"ranks", owners}});
    table.add({param.name, shape_text(param.shape),
               param.alias_of.empty() ? param.unit : "is " + param.alias_of,
               fmt::format("{}", param.offset), fmt::format("{}", param.count()),
               ranks_text(owners)});
  }
  if (out.is_text()) {
    std::cout << '\n';
    table.print();
  }
}

}  // namespace

void describe(const CheckpointReader& reader, Output& out) {
  const ManifestInfo& info = reader.info();
  out.document["info"] = json_of(info);
  out.document["params"] = reader.table().total_count();
  if (out.is_text()) {
    print_lines(fmt::format("  step {}, {} updates, {} skipped; {} sequences taken, epoch {}\n",
                            info.step, info.updates, info.skipped, info.windows_taken, info.epoch));
    print_lines(
        fmt::format("  save {}{}\n  run  {}\n", info.save_id,
                    info.parent_save_id.empty() ? std::string() : " after " + info.parent_save_id,
                    info.run_id));
    print_lines(fmt::format(
        "  ranks {}, micro-batch {}, reduce group {}, {} chunk rows, attention slice {}, seed {}\n",
        info.world_size, info.micro_batch, info.reduce_group, info.flce_chunk_rows,
        info.attention_slice, info.seed));
    print_lines(fmt::format("  {} parameters{}; {}\n", reader.table().total_count(),
                            info.nonfinite_params == 0
                                ? std::string(", all finite")
                                : fmt::format(", {} NOT FINITE", info.nonfinite_params),
                            arrays_text(info)));
    print_lines(fmt::format("  configuration {}, data {}, GEMM table {}\n",
                            or_dash(info.config_hash), or_dash(info.data_hash),
                            or_dash(info.gemm_table_hash)));
    if (!info.adapter_json.empty()) {
      print_lines(
          fmt::format("  adapters of {}; {}\n",
                      adapter_text(parse_adapter_json(info.adapter_json, reader.folder().string())),
                      adapter_base_text(adapter_base(info))));
    }
  }
  describe_shards(reader, out);
  describe_units(reader, out);
  describe_params(reader, out);
}

void say_verified(const std::vector<std::string>& damages, std::uint64_t bytes, Output& out) {
  out.document["verify"] = {{"is_whole", damages.empty()}, {"damage", damages}};
  if (!damages.empty()) {
    out.status = kDamaged;
  }
  if (out.is_text()) {
    for (const std::string& damage : damages) {
      std::cout << damage << '\n';
    }
    if (damages.empty()) {
      print_lines(fmt::format("every checksum is right ({} bytes of data)\n", bytes));
    } else {
      print_lines(
          fmt::format("damaged in {} place{}\n", damages.size(), damages.size() == 1 ? "" : "s"));
    }
  }
}

}  // namespace tessera::inspect
