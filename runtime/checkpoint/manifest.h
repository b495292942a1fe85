// The manifest says what the checkpoint is and where everything is stored, and shows each parameter
// under its name.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/layout.h"

namespace tessera {

/// A shard as the manifest and CHECKSUMS know it.
struct ShardRecord {
  std::string file;
  ShardSpec spec;
  std::uint64_t file_bytes = 0;
  std::uint64_t blocks_hash = 0;
  std::vector<Index> nonfinite;  // numbers that are not finite, of each array that is saved
};

struct Manifest {
  ManifestInfo info;
  ParamTable table;
  std::vector<ShardRecord> shards;  // by rank
};

/// The manifest as an HDF5 file, made in memory: HDF5 does not see the disk, whose failures it may
/// not report. Throws WriteError.
[[nodiscard]] std::vector<std::byte> manifest_image(const Manifest& manifest);
/// Throws FormatError, naming the field: another format or version, a value out of its range,
/// tables that are not those of the model and the ranks (manifest_check.h). `name` is for messages.
[[nodiscard]] Manifest parse_manifest(std::span<const std::byte> image, const std::string& name);

}  // namespace tessera
