// The file CHECKSUMS says what the manifest and the headers of the shards must be, so that no byte
// is believed before it has been checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/layout.h"

namespace tessera {

/// What must be true of a shard's file before it is opened.
struct ShardChecksum {
  std::string file;
  std::uint64_t file_bytes = 0;
  Hash128 header_hash;            // of all bytes outside `arrays`
  std::vector<ByteRange> arrays;  // in the order of ManifestInfo::file_arrays
  friend bool operator==(const ShardChecksum&, const ShardChecksum&) = default;
};

/// The content of the file CHECKSUMS.
struct Checksums {
  Index version = kCheckpointVersion;
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
[[nodiscard]] Hash128 hash_outside(std::uint64_t file_bytes, std::span<const ByteRange> arrays,
                                   const ReadBytes& read);

}  // namespace tessera
