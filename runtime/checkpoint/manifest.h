// The two files beside the shards. The manifest says what the checkpoint is and where everything
// lies, and shows each parameter under its name; CHECKSUMS says what the manifest and the headers
// of the shards must be, so that no byte is believed before it has been checked.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/layout.h"

namespace tessera {

/// A shard as the manifest and CHECKSUMS know it.
struct ShardRecord {
  std::string file;
  ShardSpec spec;
  std::uint64_t file_bytes = 0;
  std::uint64_t blocks_hash = 0;
  std::array<Index, kArrayCount> nonfinite{};  // numbers that are not finite, of each array
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

/// What must be true of a shard's file before it is opened.
struct ShardChecksum {
  std::string file;
  std::uint64_t file_bytes = 0;
  Hash128 header_hash;  // of all bytes outside `arrays`
  std::array<ByteRange, kArrayCount> arrays;
  friend bool operator==(const ShardChecksum&, const ShardChecksum&) = default;
};

/// The content of the file CHECKSUMS.
struct Checksums {
  std::string save_id;
  std::uint64_t manifest_bytes = 0;
  Hash128 manifest_hash;
  std::vector<ShardChecksum> shards;  // by rank
  friend bool operator==(const Checksums&, const Checksums&) = default;
  [[nodiscard]] std::string to_text() const;
};
/// Throws DamageError (it does not match its own checksum), FormatError (another version, or ranges
/// that lie outside their file or overlap).
[[nodiscard]] Checksums parse_checksums(std::string_view text, const std::string& name);

/// Fills `target` with the bytes of a file from `offset` on.
using ReadBytes = std::function<void(std::uint64_t offset, std::span<std::byte> target)>;
/// XXH3-128 of the bytes of a shard outside its arrays.
[[nodiscard]] Hash128 hash_outside(std::uint64_t file_bytes,
                                   const std::array<ByteRange, kArrayCount>& arrays,
                                   const ReadBytes& read);

}  // namespace tessera
