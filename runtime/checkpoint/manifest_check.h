// What a manifest may say: a range for every number, and what its tables must be for the model and
// the number of ranks that it names. That its bytes are the ones that were written, CHECKSUMS says.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kernels/base/error.h"
#include "runtime/checkpoint/layout.h"
#include "runtime/checkpoint/manifest.h"

namespace tessera {

/// "NAME: WHAT" as FormatError; `name` is that of the manifest.
[[noreturn]] void refuse_manifest(const std::string& name, std::string_view what,
                                  SourceLocation where);

/// Refuses a number outside [low, high], by the name of its field.
void require_range(const std::string& name, std::string_view field, Index value, Index low,
                   Index high);

/// Refuses a version of the format that this program does not read.
void require_known_version(const std::string& name, Index version);

/// Each field of `info` by itself and beside the others. `elements`: of all parameters, each once.
/// Throws FormatError naming the field, its value and its range.
void check_info(const ManifestInfo& info, Index elements, const std::string& name);
/// /table against the model of config_json, where there is one, or its adapters. Throws FormatError.
void check_table(const ParamTable& table, const ManifestInfo& info, const std::string& name);
/// /slices against the cut of the units among the ranks. Throws FormatError.
void check_slices(std::span<const ShardRecord> shards, const ParamTable& table,
                  const std::string& name);

}  // namespace tessera
