// The first bytes of a token file: a hash of all of it but the big arrays, checked before HDF5 sees
// the file. HDF5 trusts its metadata: one flipped bit can make it read beyond its buffers or,
// worse, return other numbers. It is HDF5's user block, which other HDF5 tools pass over.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "kernels/base/file.h"

namespace tessera {

/// Size of the block: HDF5 wants a user block that keeps the alignment of what follows.
inline constexpr std::uint64_t kHeaderBytes = 4096;

/// Bytes of a file that the checksum leaves out.
struct UncheckedRange {
  std::uint64_t offset;
  std::uint64_t bytes;
};

/// Writes the block of a finished file. Requires: at most 8 ranges, none below kHeaderBytes, in
/// ascending order, disjoint, inside the file. Throws WriteError.
void write_header_checksum(File& file, std::span<const UncheckedRange> left_out);

/// Whether the regular file of this name begins like a token file: a header's first line and,
/// behind the block, HDF5's signature. Says nothing about what follows. Throws as File::open_read,
/// ReadError.
[[nodiscard]] bool has_header_checksum(const std::filesystem::path& path);

/// Whether it begins with the first line of a token file, be it damaged behind that. Throws likewise.
[[nodiscard]] bool begins_as_token_file(const std::filesystem::path& path);

/// Throws FormatError if the file is empty, has no checksum, is shorter or longer than when it was
/// written, or was changed outside the ranges left out.
void check_header_checksum(const File& file);

}  // namespace tessera
